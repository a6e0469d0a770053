"""``rllib play``: play a game in the terminal, alone or against players of any kind, or watch them play."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rllib_lmgame.cli.game_table import CannotGoOn, Left, Players, Table
from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.player_options import add_player_options, check_temperature, player_settings, seed
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.errors import CheckpointError, ConfigError, MissingDependencyError, nearest
from rllib_lmgame.evaluation.players.forms import FORMS
from rllib_lmgame.imports import find_in_current_directory

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.local.scripted_players import ScriptedPlayers

NOBODY = "none"


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    """Add ``play`` to the command line; ``summary`` is its line in the list of commands."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "play",
        help=summary,
        description=(
            "Play a game in the terminal. With --checkpoint its policy plays: you watch a game for one player, and "
            "take one seat of a game for several. With --against a scripted player takes the other seats, and with "
            "both the checkpoint plays it while you watch. With --players every seat gets a player of its own."
        ),
    )
    parser.add_argument(
        "game",
        metavar="GAME",
        nargs="?",
        help="id, entry point name or package.module:Class (default: the checkpoint's game)",
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="checkpoint of LMGamePPO or LMGameSFT, or the directory of its trial"
    )
    parser.add_argument("--trust-checkpoint", action="store_true", help=TRUST_HELP)
    parser.add_argument(
        "--against", metavar="NAME", help="who plays the other seats: minimax, solver, random, or package.module:Class"
    )
    parser.add_argument(
        "--players",
        metavar="[SEAT=]PLAYER",
        nargs="+",
        action="extend",
        help=f"who takes which seat; without SEAT all other seats but yours. A player is {FORMS}",
    )
    parser.add_argument(
        "--seat",
        metavar="AGENT",
        help=f"your seat among others; `{NOBODY}` to watch (default: the first of several seats)",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="policy of the checkpoint that plays (default: as in training)"
    )
    add_player_options(parser)
    parser.add_argument("--no-pause", action="store_true", help="do not wait for Enter after each turn that you watch")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the level (default 0)")
    add_env_config(parser, "the game, on top of the checkpoint's")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Play one game; returns the exit status."""
    from rllib_lmgame.envs import GameError

    try:
        with ExitStack() as stack:
            return _open(args, stack).play(args.seed)
    except (ConfigError, CheckpointError, MissingDependencyError, GameError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Terminated:
        raise
    except (Left, KeyboardInterrupt):
        print("left")
        return 0
    except CannotGoOn:
        return 1


def _open(args: argparse.Namespace, stack: ExitStack) -> Table:
    """The game and whoever plays it; both are closed by ``stack``."""
    from rllib_lmgame.envs import make_session
    from rllib_lmgame.evaluation.players.naming import without_names

    own = parse_env_config(args.env_config)
    find_in_current_directory([args.game, args.against, without_names(args.players or ()), own])
    if args.players is not None:
        return _with_players(args, own, stack)
    if args.config is not None:
        raise ConfigError("--config", "is for hf: and openai: players, see --players")
    if args.time_limit is not None:
        raise ConfigError("--time-limit", "is for endpoints and players of your own, see --players")
    scripted = None
    if args.against is not None:
        from rllib_lmgame.rollouts.local.scripted_players import ScriptedPlayers

        scripted = ScriptedPlayers(args.against)
    if args.checkpoint is not None:
        return _with_checkpoint(args, own, scripted, stack)
    _check_alone(args)
    session = make_session(args.game, own)
    stack.callback(session.close)
    if scripted is None:
        return Table(session, people=session.agent_ids)
    _check_opponents(session)
    people = _people(session, args.seat)
    others: dict[str, Players] = {agent: scripted for agent in session.agent_ids if agent not in people}
    return Table(session, people=people, others=others, pause=not args.no_pause)


def _with_checkpoint(
    args: argparse.Namespace, own: dict[str, Any], scripted: ScriptedPlayers | None, stack: ExitStack
) -> Table:
    """The game of a checkpoint: its policies play, against a person or against ``scripted``."""
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
    from rllib_lmgame.envs import make_session

    check_temperature(args.temperature)
    checkpoint = find_checkpoint(args.checkpoint)
    if not is_own_checkpoint(checkpoint):
        raise CheckpointError(f"{checkpoint} is the checkpoint of a stock algorithm; `rllib evaluate` plays it")
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.of_checkpoint import LocalPlayers

    named = () if args.game is None else (game_spec(args.game).game_id,)
    players = stack.enter_context(
        LocalPlayers(checkpoint, temperature=args.temperature, trust=args.trust_checkpoint, games=named)
    )
    game, env_config = _game_of(players.config, args.game, own)
    session = make_session(game, env_config)
    stack.callback(session.close)
    people = _people(session, args.seat)
    others: dict[str, Players] = {agent: players for agent in session.agent_ids if agent not in people}
    if scripted is not None:
        _check_opponents(session)
        (models, people) = (people or session.agent_ids[:1], ())
        others = {agent: players if agent in models else scripted for agent in session.agent_ids}
    against = f" against {args.against}" if scripted is not None else ""
    print(f"{game} {env_config}; {checkpoint} plays{against}" + (f", you are {', '.join(people)}" if people else ""))
    return Table(session, people=people, others=others, policy=args.policy, pause=not args.no_pause)


def _with_players(args: argparse.Namespace, own: dict[str, Any], stack: ExitStack) -> Table:
    """Any game with a player of its own in every seat that is not the person's."""
    from rllib_lmgame.envs import make_session
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.evaluation.players.at_table import AtTable, line_up_of, players_of

    for flag, value in (("--checkpoint", args.checkpoint), ("--against", args.against), ("--policy", args.policy)):
        if value is not None:
            raise ConfigError(flag, "does not go with --players, which names everybody: SEAT=PLAYER")
    if args.game is None:
        raise ConfigError("", "name a game (`rllib games list` shows them)")
    settings = player_settings(args, (game_spec(args.game).game_id,), at_once=1)
    session = make_session(args.game, own)
    stack.callback(session.close)
    named, rest = line_up_of(args.players, session.agent_ids)
    free = tuple(agent for agent in session.agent_ids if agent not in named)
    people = _people(session, args.seat) if args.seat is not None else free[:1] if rest is not None else free
    taken = sorted(set(people) & named.keys())
    if taken:
        raise ConfigError("--seat", f"seat {taken[0]!r} is yours and {named[taken[0]]}'s; name another one")
    line_up = {agent: named.get(agent, rest) for agent in session.agent_ids if agent not in people}
    empty = [agent for agent, player in line_up.items() if player is None]
    if empty:
        raise ConfigError(
            "--players", f"nobody takes the seat {empty[0]!r}; write {empty[0]}=PLAYER, or PLAYER for all"
        )
    players = players_of({agent: player for agent, player in line_up.items() if player is not None}, settings)
    tables = {player: stack.enter_context(AtTable(player)) for player in dict.fromkeys(players.values())}
    seated = [f"{agent}: {line_up.get(agent, 'you')}" for agent in session.agent_ids]
    print(f"{args.game}; " + ", ".join(seated))
    others: dict[str, Players] = {agent: tables[player] for agent, player in players.items()}
    return Table(session, people=people, others=others, pause=not args.no_pause)


def _check_alone(args: argparse.Namespace) -> None:
    if args.game is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    if args.seat is not None and args.against is None:
        raise ConfigError("", "--seat needs a --checkpoint or --against, or --players; alone you play every seat")
    for flag, value in (("--policy", args.policy), ("--temperature", args.temperature)):
        if value is not None:
            raise ConfigError("", f"{flag} needs a --checkpoint")


def _check_opponents(session: GameSession) -> None:
    if len(session.agent_ids) == 1:
        raise ConfigError("--against", f"{session.game_id} has one seat; there is nobody to play against")


def _game_of(config: Any, game: str | None, own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.rollouts.records import GameConfig

    known = config.games_for_evaluation("test")
    if game is None:
        chosen = known[0]
        if len(known) > 1:
            print("the checkpoint plays several games: " + ", ".join(entry.env for entry in known))
    else:
        name = game_spec(game).game_id
        chosen = next(
            (entry for entry in known if entry.env == name), on_split((GameConfig(name),), "test", override=True)[0]
        )
    return chosen.env, {**chosen.env_config, **own}


def _people(session: GameSession, seat: str | None) -> tuple[str, ...]:
    """Seats of the person: none in a game for one, else the first one unless another is named."""
    if seat == NOBODY:
        return ()
    if seat is None:
        return () if len(session.agent_ids) == 1 else session.agent_ids[:1]
    if seat not in session.agent_ids:
        match = nearest(seat, session.agent_ids)
        hint = f"did you mean {match!r}?" if match else f"seats: {', '.join(session.agent_ids)}; `{NOBODY}` to watch"
        raise ConfigError("--seat", f"{session.game_id} has no seat {seat!r}; {hint}")
    return (seat,)
