"""``rllib play``: play a game in the terminal, alone or against a checkpoint, or watch a checkpoint play."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rllib_lmgame.cli.games import parse_env_config
from rllib_lmgame.envs.session import GameSession, Observation, StepResult
from rllib_lmgame.errors import CheckpointError, ConfigError, MissingDependencyError, nearest
from rllib_lmgame.imports import find_in_current_directory

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.local_players import LocalPlayers
    from rllib_lmgame.rollouts.seats import Seat

HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, an empty line or Ctrl-D leaves."
NOBODY = "none"


class _Left(Exception):
    """The person leaves."""


class _CannotGoOn(Exception):
    """A player cannot reply; the reason has been printed."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add ``play`` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "play",
        help="play a game, alone or against a checkpoint",
        description="Play a game in the terminal. With --checkpoint its policy plays: you watch a game for one player, and take one seat of a "
        "game for several.",
    )
    parser.add_argument("game", metavar="GAME", nargs="?", help="id, entry point name or package.module:Class (default: the checkpoint's game)")
    parser.add_argument("--checkpoint", metavar="DIR", help="checkpoint of LMGamePPO or LMGameSFT, or the directory of its trial")
    parser.add_argument("--seat", metavar="AGENT", help=f"your seat beside a checkpoint; `{NOBODY}` to watch (default: the first of several seats)")
    parser.add_argument("--policy", metavar="NAME", help="policy of the checkpoint that plays (default: as in training)")
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature; 0 is greedy (default: that of training)")
    parser.add_argument("--no-pause", action="store_true", help="do not wait for Enter after each turn that you watch")
    parser.add_argument("--seed", type=int, default=0, help="seed of the level (default 0)")
    parser.add_argument("--env-config", metavar="JSON", help="options of the game, as JSON; on top of the checkpoint's")
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
    except (_Left, KeyboardInterrupt):
        print("left")
        return 0
    except _CannotGoOn:
        return 1


def _open(args: argparse.Namespace, stack: ExitStack) -> Table:
    """The game and whoever plays it; both are closed by ``stack``."""
    from rllib_lmgame.envs import make_session

    own = parse_env_config(args.env_config or "{}")
    find_in_current_directory([args.game, own])
    if args.checkpoint is None:
        _check_alone(args)
        session = make_session(args.game, own)
        stack.callback(session.close)
        return Table(session, people=session.agent_ids)
    from rllib_lmgame.experiments.checkpoint_paths import find_checkpoint, is_own_checkpoint

    if args.temperature is not None and args.temperature < 0:
        raise ConfigError("--temperature", f"must be at least 0, got {args.temperature:g}")
    checkpoint = find_checkpoint(args.checkpoint)
    if not is_own_checkpoint(checkpoint):
        raise CheckpointError(f"{checkpoint} is the checkpoint of a stock algorithm; `rllib evaluate` plays it")
    from rllib_lmgame.algorithms.local_players import LocalPlayers

    players = stack.enter_context(LocalPlayers(checkpoint, temperature=args.temperature))
    game, env_config = _game_of(players.config, args.game, own)
    session = make_session(game, env_config)
    stack.callback(session.close)
    people = _people(session, args.seat)
    print(f"{game} {env_config}; {checkpoint} plays" + (f", you are {', '.join(people)}" if people else ""))
    return Table(session, people=people, players=players, policy=args.policy, pause=not args.no_pause)


def _check_alone(args: argparse.Namespace) -> None:
    if args.game is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    for flag, value in (("--seat", args.seat), ("--policy", args.policy), ("--temperature", args.temperature)):
        if value is not None:
            raise ConfigError("", f"{flag} needs a --checkpoint")


def _game_of(config: Any, game: str | None, own: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
    from rllib_lmgame.algorithms.games import on_split
    from rllib_lmgame.envs.registry import game_spec
    from rllib_lmgame.rollouts.env_runner import GameConfig

    known = config.games_for_evaluation("test")
    if game is None:
        chosen = known[0]
        if len(known) > 1:
            print("the checkpoint plays several games: " + ", ".join(entry.env for entry in known))
    else:
        name = game_spec(game).game_id
        chosen = next((entry for entry in known if entry.env == name), on_split((GameConfig(name),), "test", override=True)[0])
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


class Table:
    """A game in the terminal.

    Args:
        session: The game.
        people: Seats played by hand.
        players: Who plays the others.
        policy: Policy that plays the others instead of the one of training.
        pause: Wait for Enter after each turn, where nobody plays by hand.
    """

    def __init__(
        self,
        session: GameSession,
        *,
        people: tuple[str, ...],
        players: LocalPlayers | None = None,
        policy: str | None = None,
        pause: bool = False,
    ) -> None:
        self.session = session
        self.people = people
        self.players = players
        self.policy = policy
        self.pause = pause and not people
        self.seats: dict[str, Seat] = {}
        self.totals = dict.fromkeys(session.agent_ids, 0.0)

    def play(self, seed: int) -> int:
        """Play to the end; returns the exit status.

        Raises:
            ConfigError: if the context is too small for the first prompt, or a policy is unknown.
            _Left: when the person leaves.
            _CannotGoOn: when a player cannot reply.
        """
        session = self.session
        session.reset(seed)
        print(session.instructions, *([HELP] if self.people else []), sep="\n\n")
        for agent in session.agent_ids:
            if agent not in self.people and self.players is not None:
                self.seats[agent] = self.players.seat(session, agent, seed=seed, policy=self.policy)
        while session.to_act():
            actions = {agent: self._action(agent) for agent in session.to_act()}
            result = session.step(actions)
            self._credit(actions, result)
            _report(session, result, self.totals)
            if self.pause and not result.done:
                _read("(Enter to go on, Ctrl-D to leave) ")
        return 0

    def _action(self, agent: str) -> str:
        return self._ask(agent) if agent in self.people else self._reply(agent)

    def _ask(self, agent: str) -> str:
        """The person's action."""
        session, seen = self.session, self.session.observe(agent)
        print(f"\n{seen.text}")
        while True:
            text = _read(f"{agent}{_turns_left(seen)}> ").strip()
            if text == "?":
                print(", ".join(seen.legal_actions) or "the game does not list them")
            elif text == "!":
                expert = session.expert_action(agent)
                print(expert or "the game has no expert")
                if expert:
                    return expert
            elif text:
                return text
            else:
                raise _Left

    def _reply(self, agent: str) -> str:
        """The action of whoever plays ``agent``, shown as it was written."""
        from rllib_lmgame.rollouts.seats import EpisodeFailed, LanguageModelSeat, OutOfTokens

        assert self.players is not None
        seat, seen = self.seats[agent], self.session.observe(agent)
        if not self.people:
            print(f"\n{seen.text}")
        try:
            action = self.players.act(seat, self.session)
        except OutOfTokens as stop:
            print(f"{agent} has no tokens left for another reply ({stop.reason.value})")
            raise _CannotGoOn from None
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            raise _CannotGoOn from None
        written = action
        if isinstance(seat, LanguageModelSeat):
            reply = seat.chat.read(seat.turns[-1].response_ids)
            # A reply may say what the person at the table must not see; its action is public.
            written = action if self.people and action else repr(reply) if reply.strip() != reply or "\n" in reply else reply
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
    try:
        return input(prompt)
    except EOFError:
        raise _Left from None


def _report(session: GameSession, result: StepResult, totals: Mapping[str, float]) -> None:
    print("reward: " + ", ".join(f"{agent} {reward:g}" for agent, reward in result.rewards.items()))
    if not result.done:
        return
    print(f"\n{session.observe(session.agent_ids[0]).text}\n")
    ending = "the game is over" if result.terminated else "the budget is used up"
    print(f"{ending}; return: " + ", ".join(f"{agent} {total:g}" for agent, total in totals.items()))
    won = [agent for agent in session.agent_ids if result.infos.get(agent, {}).get("success")]
    print("success: " + (", ".join(won) or "none"))
