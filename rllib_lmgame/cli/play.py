"""``rllib play``: play a game in the terminal, alone, against a scripted player or a checkpoint, or watch them play."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rllib_lmgame.cli.games import TRUST_HELP, add_env_config, parse_env_config
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.errors import CheckpointError, ConfigError, MissingDependencyError, nearest
from rllib_lmgame.imports import find_in_current_directory

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.local.scripted_players import ScriptedPlayers
    from rllib_lmgame.rollouts.seats import Seat

HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, an empty line or Ctrl-D leaves."
NOBODY = "none"
T = TypeVar("T")


class _Left(Exception):
    """The person leaves."""


class _CannotGoOn(Exception):
    """A player cannot reply, or the game does not; the reason has been printed."""


def add_parser(subparsers: Any, summary: str) -> argparse.ArgumentParser:
    """Add ``play`` to the command line; ``summary`` is its line in the list of commands."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "play",
        help=summary,
        description=(
            "Play a game in the terminal. With --checkpoint its policy plays: you watch a game for one player, and "
            "take one seat of a game for several. With --against a scripted player takes the other seats, and with "
            "both the checkpoint plays it while you watch."
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
        "--seat",
        metavar="AGENT",
        help=f"your seat among others; `{NOBODY}` to watch (default: the first of several seats)",
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="policy of the checkpoint that plays (default: as in training)"
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy (default: that of training)"
    )
    parser.add_argument("--no-pause", action="store_true", help="do not wait for Enter after each turn that you watch")
    parser.add_argument("--seed", type=int, default=0, help="seed of the level (default 0)")
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
    except (_Left, KeyboardInterrupt):
        print("left")
        return 0
    except _CannotGoOn:
        return 1


def _open(args: argparse.Namespace, stack: ExitStack) -> Table:
    """The game and whoever plays it; both are closed by ``stack``."""
    from rllib_lmgame.envs import make_session

    own = parse_env_config(args.env_config)
    find_in_current_directory([args.game, args.against, own])
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

    if args.temperature is not None and args.temperature < 0:
        raise ConfigError("--temperature", f"must be at least 0, got {args.temperature:g}")
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


def _check_alone(args: argparse.Namespace) -> None:
    if args.game is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    if args.seat is not None and args.against is None:
        raise ConfigError("", "--seat needs a --checkpoint or --against; alone you play every seat")
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


class Players(Protocol):
    """Who takes seats in games and replies for them."""

    def seat(self, session: GameSession, agent: str, *, seed: int, policy: str | None = None) -> Seat:
        """Whoever plays ``agent``'s seat."""

    def act(self, seat: Seat, session: GameSession) -> str:
        """The action of ``seat`` for what it sees now."""


class Table:
    """A game in the terminal.

    Args:
        session: The game.
        people: Seats played by hand.
        others: Who plays each of the other seats.
        policy: Policy of a checkpoint that plays instead of the one of training.
        pause: Wait for Enter after each turn, where nobody plays by hand.
    """

    def __init__(
        self,
        session: GameSession,
        *,
        people: tuple[str, ...],
        others: Mapping[str, Players] | None = None,
        policy: str | None = None,
        pause: bool = False,
    ) -> None:
        self.session = session
        self.people = people
        self.others = dict(others or {})
        self.policy = policy
        self.pause = pause and not people
        self.seats: dict[str, Seat] = {}
        self.totals = dict.fromkeys(session.agent_ids, 0.0)
        self._silent: set[str] = set()

    def play(self, seed: int) -> int:
        """Play to the end; returns the exit status.

        Raises:
            ConfigError: if the context is too small for the first prompt, or a policy is unknown.
            _Left: when the person leaves.
            _CannotGoOn: when a player cannot reply, or the game does not.
        """
        session = self.session
        self._call("reset", session.reset, seed)
        print(session.instructions, *([HELP] if self.people else []), sep="\n\n")
        self.seats = {
            agent: players.seat(session, agent, seed=seed, policy=self.policy) for agent, players in self.others.items()
        }
        while acting := session.to_act():
            result = self._step(acting)
            _report(session, result, self.totals)
            if self.pause and not result.done:
                _read("(Enter to go on, Ctrl-D to leave) ")
        return 0

    def _step(self, acting: tuple[str, ...]) -> StepResult:
        """One step of the game. For players who can write no more it goes on as in training: it passes for them, or
        they forfeit.
        """
        actions = {agent: text for agent in acting if (text := self._action(agent)) is not None}
        passes = {agent: self.session.pass_action(agent) for agent in acting if agent not in actions}
        if passes and len(self.session.agent_ids) == 1:
            raise _CannotGoOn
        result = None
        if None in passes.values() and len(acting) == 1:
            result = self._call("forfeit", self.session.forfeit, acting[0])
        if result is None:
            result = self._call(
                "step", self.session.step, {**actions, **{agent: text or "" for agent, text in passes.items()}}
            )
        self._credit(actions, result)
        return result

    def _call(self, what: str, function: Callable[..., T], *args: Any) -> T:
        """A call into the game, given up if a game of others takes too long."""
        from rllib_lmgame.rollouts.local.scripted_players import call_game
        from rllib_lmgame.rollouts.seats import EpisodeFailed

        try:
            return call_game(self.session, what, function, *args)
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            raise _CannotGoOn from None

    def _action(self, agent: str) -> str | None:
        """What ``agent`` does; ``None`` if it can write no more."""
        if agent in self.people:
            return self._ask(agent)
        return None if agent in self._silent else self._reply(agent)

    def _ask(self, agent: str) -> str:
        """The person's action."""
        session, seen = self.session, self._call("observe", self.session.observe, agent)
        print(f"\n{seen.text}")
        while True:
            text = _read(f"{agent}{_turns_left(seen)}> ").strip()
            if text == "?":
                print(", ".join(seen.legal_actions) or "the game does not list them")
            elif text == "!":
                expert = self._call("expert_action", session.expert_action, agent)
                print(expert or "the game has no expert")
                if expert:
                    return expert
            elif text:
                return text
            else:
                raise _Left

    def _reply(self, agent: str) -> str | None:
        """The action of whoever plays ``agent``, shown as it was written; ``None`` if it can write no more."""
        from rllib_lmgame.rollouts.seats import EpisodeFailed, LanguageModelSeat, OutOfTokens

        seat, seen = self.seats[agent], self._call("observe", self.session.observe, agent)
        if not self.people:
            print(f"\n{seen.text}")
        try:
            action = self.others[agent].act(seat, self.session)
        except OutOfTokens as stop:
            print(f"{agent} has no tokens left for another reply ({stop.reason.value})")
            self._silent.add(agent)
            return None
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            raise _CannotGoOn from None
        written = action
        if isinstance(seat, LanguageModelSeat):
            reply = seat.chat.read(seat.turns[-1].response_ids)
            # A reply may say what the person at the table must not see; its action is public.
            written = (
                action if self.people and action else repr(reply) if reply.strip() != reply or "\n" in reply else reply
            )
        print(f"{agent}{_turns_left(seen)} ({seat.module_id})> {written}")
        return action

    def _credit(self, actions: Mapping[str, str], result: StepResult) -> None:
        for agent, seat in self.seats.items():
            if agent in actions:
                seat.acted(bool(result.infos.get(agent, {}).get("invalid_action")))
        for agent, reward in result.rewards.items():
            self.totals[agent] += reward


def _turns_left(seen: Observation) -> str:
    return "" if seen.turns_left is None else f" ({seen.turns_left} turns left)"


def _read(prompt: str) -> str:
    """A line that was typed; one from a pipe or file is shown, as a terminal would show it."""
    try:
        text = input(prompt)
    except EOFError:
        print()  # ends the line of the prompt
        raise _Left from None
    if not sys.stdin.isatty():
        print(text)
    return text


def _report(session: GameSession, result: StepResult, totals: Mapping[str, float]) -> None:
    print("reward: " + ", ".join(f"{agent} {reward:g}" for agent, reward in result.rewards.items()))
    if not result.done:
        return
    print(f"\n{session.observe(session.agent_ids[0]).text}\n")
    ending = "the game is over" if result.terminated else "the budget is used up"
    print(f"{ending}; return: " + ", ".join(f"{agent} {total:g}" for agent, total in totals.items()))
    won = [agent for agent in session.agent_ids if result.infos.get(agent, {}).get("success")]
    print("success: " + (", ".join(won) or "none"))
    for agent in session.agent_ids:
        measures = result.infos.get(agent, {}).get("measures") or {}
        if measures:
            print(f"{agent}: " + ", ".join(f"{name} {number:g}" for name, number in measures.items()))
