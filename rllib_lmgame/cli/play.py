"""``rllib play``: play a game in the terminal, alone or against players of any kind, or watch them play."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.limits import CALL_LIMIT_S
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option, env_config, env_config_of, seed
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.policies.scripted import FORMS

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.envs.contract.session import GameSession
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.players import Player
    from rllib_lmgame.rollouts.records import GameConfig

NOBODY = "none"


@options.command(
    "Play a game in the terminal. You take the first seat that no player is named for, and watch where there is none, "
    "or with --seat none.",
    Option("[GAME]", "id, entry point name or package.module:Class (default: the checkpoint's game)", dest="game"),
    Option("--checkpoint DIR", "a checkpoint, or the directory of its trial: it plays the other seats of its game"),
    Option("--players [SEAT=]PLAYER...", f"who takes which seat; without SEAT all that are left: {FORMS}", default=[]),
    Option("--seat AGENT", "your seat; `none` to watch (default: the first of several that is left)"),
    *PLAYER_OPTIONS,
    Option("--no-pause", "do not wait for Enter after each turn that you watch"),
    seed("the level"),
    env_config("the game, on top of the checkpoint's"),
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.cli.terminal_game import Left
    from rllib_lmgame.envs import GameError

    try:
        return _play(args)
    except GameError as error:
        raise ConfigError("", str(error)) from error
    except (Left, KeyboardInterrupt) as end:
        if isinstance(end, Terminated):
            raise
        print("left")
        return 0


def _play(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.games import found_beside
    from rllib_lmgame.cli.terminal_game import play_in_terminal
    from rllib_lmgame.envs import make_session
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import without_names
    from rllib_lmgame.rollouts.plans import EpisodePlan
    from rllib_lmgame.rollouts.records import GameConfig

    own_options = env_config_of(args)
    find_in_current_directory([args.game, without_names(args.players), own_options])
    if args.game is None and args.checkpoint is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    games = () if args.game is None else (GameConfig(env=game_spec(args.game).game_id, env_config=own_options),)
    settings = player_settings(args, games, at_once=1)
    limit_s, shown = CALL_LIMIT_S, ""
    if args.checkpoint is not None:
        config = _config_of(args.checkpoint, settings)
        games = (_game_of(config, None if args.game is None else games[0].env, own_options),)
        limit_s, shown = config.run.text_rollouts.env_step_timeout_s, f" {games[0].env_config}"
    (game,) = games
    found_beside(game)
    session = make_session(game.env, game.env_config)
    try:
        plan = EpisodePlan(f"play-{args.seed}", 0, args.seed, "", 0)
        players = players_of(args, session, replace(settings, games=games))
        if args.players or args.checkpoint is not None:
            seats = [f"{agent}: {player.name}" for agent, player in players.items()]
            told = [seat for seat in seats if not session.secret_seats or seat.endswith(": you")]
            print(f"{game.env}{shown}; " + ", ".join(told))
        plan = replace(plan, assignments={agent: player.assignment for agent, player in players.items()})
        return asyncio.run(play_in_terminal(session, players, plan, pause=not args.no_pause, limit_s=limit_s))
    finally:
        session.close()


def _config_of(path: str, settings: PlayerSettings) -> LMGameConfig:
    """Configuration of a checkpoint. Raises: CheckpointError: not one of this package, or damaged."""
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
    from rllib_lmgame.evaluation.saved_config import open_checkpoint

    checkpoint = find_checkpoint(path)
    if not is_own_checkpoint(checkpoint):
        raise CheckpointError(f"{checkpoint} is the checkpoint of a stock algorithm; `rllib evaluate` plays it")
    return open_checkpoint(checkpoint, trust=settings.trust)[1]


def _game_of(config: LMGameConfig, name: str | None, own: Mapping[str, Any]) -> GameConfig:
    """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.rollouts.records import GameConfig

    known = config.games_for_evaluation("test")
    if name is not None:
        elsewhere = on_split((GameConfig(env=name),), "test", override=True)[0]
        chosen = next((entry for entry in known if entry.env == name), elsewhere)
    elif not known:
        raise ConfigError("GAME", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
    else:
        chosen = known[0]
        if len(known) > 1:
            print("the checkpoint plays several games: " + ", ".join(entry.env for entry in known))
    return GameConfig(env=chosen.env, env_config={**chosen.env_config, **own})


def players_of(args: argparse.Namespace, session: GameSession, settings: PlayerSettings) -> dict[str, Player]:
    """Who sits where; each player is made once.

    Raises: ConfigError: no such player or seat, or not one player for each seat; CheckpointError: damaged.
    """
    from rllib_lmgame.cli.terminal_game import Person
    from rllib_lmgame.evaluation.players.naming import make_player

    agents, seat = session.agent_ids, args.seat
    named = seats_of(args.players, agents)
    rest = named.pop(None, args.checkpoint)
    if seat not in (None, NOBODY, *agents):
        hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}; `{NOBODY}` to watch")
        raise ConfigError("--seat", f"{session.game_id} has no seat {seat!r}; {hint}")
    if seat in named:
        raise ConfigError("--seat", f"seat {seat!r} is yours and {named[seat]}'s; name another one")
    people = [agent for agent in agents if agent not in named]
    if seat is not None:
        people = [agent for agent in agents if agent == seat]
    elif rest is not None:
        people = people[: len(agents) > 1]
    made: dict[str | None, Player] = {None: Person()}
    seated = {}
    for agent in agents:
        source = None if agent in people else named.get(agent, rest)
        if source is None and agent not in people:
            why = f"nobody takes the seat {agent!r}; write {agent}=PLAYER, or PLAYER for all"
            raise ConfigError("--players", why)
        if source not in made:
            made[source] = make_player(str(source), str(source), settings)
        seated[agent] = made[source]
    return seated


def seats_of(texts: Sequence[str], agents: Sequence[str]) -> dict[str | None, str]:
    """Players by seat of ``SEAT=PLAYER``; below ``None`` who takes the others. Raises: ConfigError."""
    from rllib_lmgame.evaluation.players.naming import split_name

    named: dict[str | None, str] = {}
    for text in texts:
        seat, player = split_name(text)
        if seat not in (None, *agents):
            hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}")
            raise ConfigError("--players", f"there is no seat {seat!r}; {hint}")
        if seat in named:
            what = "the rest of the seats" if seat is None else f"seat {seat!r}"
            raise ConfigError("--players", f"{what} is given twice; write SEAT=PLAYER for each")
        named[seat] = player
    return named
