"""``rllib play``: play a game in the terminal, alone or against players of any kind, or watch them play."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import OneOf, Option, env_config, env_config_of, given, seed
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.policies.scripted import FORMS
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.envs.contract.session import GameSession
    from rllib_lmgame.evaluation.players.settings import PlayerSettings
    from rllib_lmgame.rollouts.plans import EpisodePlan
    from rllib_lmgame.rollouts.players import Player

NOBODY = "none"
SAVED = "the policy of --checkpoint"
"""Stands for it among the players of seats."""


@options.command(
    "Play a game in the terminal. Who is named takes the other seats, or one each; you take the first seat that is "
    "left, and watch where there is none, or with --seat none. With --checkpoint its policies play as in training, "
    "with --against, too, those two play each other.",
    Option("[GAME]", "id, entry point name or package.module:Class (default: the checkpoint's game)", dest="game"),
    Option("--checkpoint DIR", "a checkpoint with a language model, or the directory of its trial"),
    OneOf(
        Option("--against PLAYER", "who plays the other seats, as --players names them"),
        Option("--players [SEAT=]PLAYER...", f"who takes which seat; without SEAT all that are left: {FORMS}"),
    ),
    Option("--seat AGENT", "your seat; `none` to watch (default: the first of several that is left)"),
    Option("--policy NAME", "policy of the checkpoint that plays (default: as in training)"),
    *PLAYER_OPTIONS,
    Option("--no-pause", "do not wait for Enter after each turn that you watch"),
    seed("the level"),
    env_config("the game, on top of the checkpoint's"),
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.cli.game_table import Left
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
    from rllib_lmgame.cli.game_table import play_at_table
    from rllib_lmgame.envs import make_session
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.naming import without_names
    from rllib_lmgame.rollouts.plans import EpisodePlan
    from rllib_lmgame.rollouts.records import GameConfig

    game, own_options = args.game, env_config_of(args)
    find_in_current_directory([game, args.against, without_names(args.players or ()), own_options])
    for flag in given(args, "--checkpoint", "--policy") if args.players is not None else ():
        raise ConfigError(flag, "does not go with --players, which names everybody: SEAT=PLAYER")
    if game is None and args.checkpoint is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    named = () if game is None else (GameConfig(env=game_spec(game).game_id, env_config=dict(own_options)),)
    settings = player_settings(args, named, at_once=1, flag="--against" if args.against else "--players")
    checkpoint = None if args.checkpoint is None else OpenCheckpoint.at(args.checkpoint, settings)
    limit_s, shown = CALL_LIMIT_S, ""
    if checkpoint is not None:
        game, own_options = checkpoint.game(game, own_options)
        limit_s, shown = checkpoint.config.text_rollout_options.env_step_timeout_s, f" {own_options}"
    found_beside(GameConfig(env=game, env_config=own_options))
    session = make_session(game, own_options)
    try:
        plan = EpisodePlan(f"play-{args.seed}", 0, args.seed, "", 0)
        players = players_of(args, session, plan, checkpoint, settings)
        if args.players or args.against or checkpoint is not None:
            seats = [f"{agent}: {player.name}" for agent, player in players.items()]
            told = [seat for seat in seats if not session.secret_seats or seat.endswith(": you")]
            print(f"{game}{shown}; " + ", ".join(told))
        plan = replace(plan, assignments={agent: player.assignment for agent, player in players.items()})
        return asyncio.run(play_at_table(session, players, plan, pause=not args.no_pause, limit_s=limit_s))
    finally:
        session.close()


@dataclass(frozen=True)
class OpenCheckpoint:
    place: Path
    config: LMGameConfig

    @classmethod
    def at(cls, path: str, settings: PlayerSettings) -> OpenCheckpoint:
        """The checkpoint at or below ``path``. Raises: CheckpointError: not one of this package, or damaged."""
        from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
        from rllib_lmgame.evaluation.saved_config import open_checkpoint

        checkpoint = find_checkpoint(path)
        if not is_own_checkpoint(checkpoint):
            raise CheckpointError(f"{checkpoint} is the checkpoint of a stock algorithm; `rllib evaluate` plays it")
        return cls(*open_checkpoint(checkpoint, trust=settings.trust, games=settings.names))

    def game(self, name: str | None, own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
        from rllib_lmgame.algorithms.games import on_split
        from rllib_lmgame.envs.registry import game_spec
        from rllib_lmgame.rollouts.records import GameConfig

        known = self.config.games_for_evaluation("test")
        if name is None:
            if not known:
                raise ConfigError("GAME", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
            chosen = known[0]
            if len(known) > 1:
                print("the checkpoint plays several games: " + ", ".join(entry.env for entry in known))
        else:
            name = game_spec(name).game_id
            elsewhere = on_split((GameConfig(env=name),), "test", override=True)[0]
            chosen = next((entry for entry in known if entry.env == name), elsewhere)
        return chosen.env, {**chosen.env_config, **own}

    def players(
        self, agents: Sequence[str], session: GameSession, plan: EpisodePlan, policy: str | None, own: PlayerSettings
    ) -> dict[str, Player]:
        """Who takes these seats: the ``policy``, or those that did in training."""
        from rllib_lmgame.evaluation.players.language_model import policy_player
        from rllib_lmgame.rollouts.sources import AgentMapper

        assignments = {} if policy is not None else AgentMapper(self.config).assignments(plan, session.roles)
        policies = {agent: policy or assignments[agent].module_id for agent in agents}
        own = replace(own, seed=self.config.seed or 0, flag="--policy")
        names = dict.fromkeys(policies.values())
        made = {name: policy_player(name, name, self.place, self.config, name, own) for name in names}
        return {agent: made[name] for agent, name in policies.items()}


def players_of(
    args: argparse.Namespace,
    session: GameSession,
    plan: EpisodePlan,
    checkpoint: OpenCheckpoint | None,
    settings: PlayerSettings,
) -> dict[str, Player]:
    """Who sits where; each player is made once.

    Raises: ConfigError: no such player or seat, or not one player for each seat; CheckpointError: damaged.
    """
    from rllib_lmgame.cli.game_table import Person
    from rllib_lmgame.evaluation.players.naming import make_player

    agents, seat = session.agent_ids, args.seat
    named, rest = assignments_of(args.players or (), agents)
    rest = rest or args.against or (None if checkpoint is None else SAVED)
    if seat not in (None, NOBODY, *agents):
        hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}; `{NOBODY}` to watch")
        raise ConfigError("--seat", f"{session.game_id} has no seat {seat!r}; {hint}")
    people = free = [agent for agent in agents if agent not in named]
    if checkpoint is not None and args.against is not None:  # The person watches.
        named, people = {agents[0] if seat in (None, NOBODY) else seat: SAVED}, []
    elif seat is not None:
        people = [agent for agent in agents if agent == seat]
    else:
        people = free if rest is None else free[: len(agents) > 1]
    sources = {agent: None if agent in people else named.get(agent, rest) for agent in agents}
    for agent, source in sources.items():
        if agent in people and agent in named:
            raise ConfigError("--seat", f"seat {agent!r} is yours and {named[agent]}'s; name another one")
        if agent not in people and source is None:
            why = f"nobody takes the seat {agent!r}; write {agent}=PLAYER, or PLAYER for all"
            raise ConfigError("--players", why)
    made: dict[str | None, Player] = {None: Person()}
    for each in sources.values():
        if each not in (*made, SAVED):
            made[each] = make_player(str(each), str(each), settings)
    saved = [agent for agent, source in sources.items() if source == SAVED]
    of_saved = {} if checkpoint is None else checkpoint.players(saved, session, plan, args.policy, settings)
    return {agent: of_saved[agent] if source == SAVED else made[source] for agent, source in sources.items()}


def assignments_of(texts: Sequence[str], agents: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Players by seat of ``SEAT=PLAYER``, and who takes the rest. Raises: ConfigError: no such seat, or one twice."""
    from rllib_lmgame.evaluation.players.naming import split_name

    named: dict[str, str] = {}
    others: str | None = None
    for text in texts:
        seat, player = split_name(text)
        if seat is None and others is not None:
            why = f"{others!r} and {text!r} cannot both take all other seats; write SEAT=PLAYER"
            raise ConfigError("--players", why)
        if seat is None:
            others = player
            continue
        if seat not in agents:
            hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}")
            raise ConfigError("--players", f"there is no seat {seat!r}; {hint}")
        if seat in named:
            raise ConfigError("--players", f"seat {seat!r} is given twice")
        named[seat] = player
    return named, others
