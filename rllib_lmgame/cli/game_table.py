"""A game in the terminal: what is shown, what is typed."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from rllib_lmgame.base.text import printable
from rllib_lmgame.cli.signals import Terminated
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import GameInPlay, GameStep
from rllib_lmgame.rollouts.players import Player, seat_seed
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat

HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, `quit`, an empty line or Ctrl-D leaves."
LEAVES = ("", "quit", "exit")
"""Input that leaves the game unless it is a legal action."""


class Left(Exception):
    """Raised when the person leaves the game."""


class Person(Player):
    """The person at the terminal."""

    def __init__(self) -> None:
        super().__init__("you")

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        return PersonSeat(agent, session.roles[agent], self.name)


@dataclass
class PersonSeat(Seat):
    played_for = True

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        print(f"\n{printable(observation.text)}")
        while True:
            text = _read(f"{self.agent_id}{_turns_left(observation.turns_left)}> ").strip()
            if text == "?":
                print(", ".join(observation.legal_actions) or "the game does not list them")
            elif text == "!":
                expert: str | None = await call("expert_action", session.expert_action, self.agent_id)
                print(expert or "the game has no expert")
                if expert:
                    return expert
            elif text.lower() in LEAVES and text not in observation.legal_actions:
                raise Left
            else:
                return text


async def play_at_table(
    session: GameSession,
    players: Mapping[str, Player],
    plan: EpisodePlan,
    *,
    pause: bool,
    limit_s: float,
) -> int:
    """Play a game to its end and show it; returns the exit status.

    ``pause`` waits for Enter after each turn where nobody plays by hand, ``limit_s`` is for one call into a game that
    is not this package's.

    Raises: ConfigError: a player cannot begin, or the first prompt is too long; Left: the person leaves.
    """

    def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        return {agent: player.seat(session, plan, agent, seat_seed(plan, agent)) for agent, player in players.items()}

    async with AsyncExitStack() as stack:
        for player in dict.fromkeys(players.values()):
            await stack.enter_async_context(player)
        try:
            game = await GameInPlay.begin(session, plan, seats, limit_s)
            return await _Table(game).play(pause)
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 1


class _Table:
    def __init__(self, game: GameInPlay) -> None:
        self.game = game
        self.people = [agent for agent, seat in game.seats.items() if isinstance(seat, PersonSeat)]
        # The person must not see who plays which seat.
        self.secret = game.session.secret_seats and bool(self.people)

    async def play(self, pause: bool) -> int:
        game = self.game
        print(game.session.instructions, *([HELP] if self.people else []), sep="\n\n")
        while game.views:
            played = len(game.steps)
            asked = {agent: view for agent, view in game.views.items() if agent not in game.ends}
            if len(asked) == 1:  # The reply may take long.
                self._show_view(*asked.values())
            # A person who is to act at the same time as others does so before they are heard.
            game.views = dict(sorted(game.views.items(), key=lambda view: view[0] not in self.people))
            await game.advance()
            step = game.steps[-1] if len(game.steps) > played else None
            for agent, view in asked.items():
                if len(asked) > 1:
                    self._show_view(view)
                self._show_reply(agent, view, step)
            if step is None:  # No player is left.
                return 1
            self._show_rewards(step)
            if game.views and pause and not self.people:
                _read("(Enter to go on, Ctrl-D to leave) ")
        await self._verdict()
        return 0

    def _show_view(self, view: Observation) -> None:
        if not self.people:
            print(f"\n{printable(view.text)}")

    def _show_reply(self, agent: str, view: Observation, step: GameStep | None) -> None:
        """What ``agent`` wrote; hidden from a person who plays, because the game shows what all players may know."""
        if agent in self.people or self.secret:
            return
        if step is None or agent not in step.actions:
            print(f"{agent} has no tokens left for another reply ({self.game.ends[agent].stop_reason.value})")
            return
        seat = self.game.seats[agent]
        said = seat.said()
        written = step.actions[agent] if said is None else repr(said) if said.strip() != said or "\n" in said else said
        shown = "(has replied)" if self.people else printable(written)
        print(f"{agent}{_turns_left(view.turns_left)} ({seat.module_id})> {shown}")

    def _show_rewards(self, step: GameStep) -> None:
        shown = self.people if self.secret and self.game.views else list(step.rewards)
        rewards = {agent: step.rewards[agent] for agent in shown if agent in step.rewards}
        if not self.secret or any(rewards.values()):
            print("reward: " + ", ".join(f"{agent} {reward:g}" for agent, reward in rewards.items()))

    async def _verdict(self) -> None:
        game, agents = self.game, list(self.game.seats)
        viewer = (self.people or agents)[0]
        seen = await game.call("observe", game.session.observe, viewer)
        print(f"\n{printable(seen.text)}\n")
        ending = "the budget is used up" if game.stop_reason() is StopReason.MAX_TURNS else "the game is over"
        print(f"{ending}; return: " + ", ".join(f"{agent} {game.seats[agent].episode_return:g}" for agent in agents))
        infos = {agent: game.infos.get(agent, {}) for agent in agents}
        if any("success" in info for info in infos.values()):
            won = [agent for agent in agents if infos[agent].get("success")]
            print("success: " + (", ".join(won) or "no" * (len(agents) == 1) or "nobody"))
        measures = {agent: infos[agent].get("measures") or {} for agent in agents}
        of_all = len(measures) > 1 and all(found == measures[viewer] for found in measures.values())
        for agent, found in ({"all": measures[viewer]} if of_all else measures).items():
            if found:
                print(f"{agent}: " + ", ".join(f"{name} {number:g}" for name, number in found.items()))


def _turns_left(turns: int | None) -> str:
    return "" if turns is None else f" ({turns} turn{'s' * (turns != 1)} left)"


def _read(prompt: str) -> str:
    """A typed line; one from a pipe or file is printed too. Raises Left at the end or for Ctrl-C."""
    try:
        with _interruptible():
            text = input(prompt)
    except EOFError:
        print()  # ends the line of the prompt
        raise Left from None
    except Terminated:
        raise
    except KeyboardInterrupt:
        raise Left from None
    if not sys.stdin.isatty():
        print(text)
    return text


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends waiting for a line: the handler of an event loop would wait for its coroutine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
