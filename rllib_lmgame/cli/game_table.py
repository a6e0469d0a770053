"""A game in the terminal: who sits at it, what is shown, what is typed."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rllib_lmgame.envs.contract.session import GameSession, Observation, StepResult
from rllib_lmgame.text import printable

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.seats import Seat

HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, `quit`, an empty line or Ctrl-D leaves."
LEAVES = ("", "quit", "exit")
"""What a person types to leave, where it is no action of the game."""
T = TypeVar("T")


class Left(Exception):
    """The person leaves."""


class CannotGoOn(Exception):
    """A player cannot reply, or the game does not; the reason has been printed."""


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
            Left: when the person leaves.
            CannotGoOn: when a player cannot reply, or the game does not.
        """
        session = self.session
        self._call("reset", session.reset, seed)
        print(session.instructions, *([HELP] if self.people else []), sep="\n\n")
        self.seats = {
            agent: players.seat(session, agent, seed=seed, policy=self.policy) for agent, players in self.others.items()
        }
        while acting := session.to_act():
            result = self._step(acting)
            self._report(result)
            if self.pause and not result.done:
                _read("(Enter to go on, Ctrl-D to leave) ")
        return 0

    def _step(self, acting: tuple[str, ...]) -> StepResult:
        """One step of the game. For players who can write no more it goes on as in training: it passes for them, or
        they forfeit.
        """
        # A person who is to act at the same time as others does so before they are heard.
        order = sorted(acting, key=lambda agent: agent not in self.people)
        said = {agent: text for agent in order if (text := self._action(agent)) is not None}
        actions = {agent: said[agent] for agent in acting if agent in said}
        passes = {agent: self.session.pass_action(agent) for agent in acting if agent not in actions}
        if passes and len(self.session.agent_ids) == 1:
            raise CannotGoOn
        result = None
        if None in passes.values() and len(acting) == 1:
            result = self._call("forfeit", self.session.forfeit, acting[0])
        if result is None:
            result = self._call(
                "step", self.session.step, {**actions, **{agent: text or "" for agent, text in passes.items()}}
            )
        result = self._call("step", _with_plain_infos, result)
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
            raise CannotGoOn from None

    def _action(self, agent: str) -> str | None:
        """What ``agent`` does; ``None`` if it can write no more."""
        if agent in self.people:
            return self._ask(agent)
        return None if agent in self._silent else self._reply(agent)

    def _ask(self, agent: str) -> str:
        """The person's action."""
        session, seen = self.session, self._call("observe", self.session.observe, agent)
        print(f"\n{printable(seen.text)}")
        while True:
            text = _read(f"{agent}{_turns_left(seen)}> ").strip()
            if text == "?":
                print(", ".join(seen.legal_actions) or "the game does not list them")
            elif text == "!":
                expert = self._call("expert_action", session.expert_action, agent)
                print(expert or "the game has no expert")
                if expert:
                    return expert
            elif text.lower() in LEAVES and text not in seen.legal_actions:
                raise Left
            else:
                return text

    def _reply(self, agent: str) -> str | None:
        """The action of whoever plays ``agent``, shown as it was written; ``None`` if it can write no more."""
        from rllib_lmgame.rollouts.seats import EpisodeFailed, OutOfTokens

        seat, seen = self.seats[agent], self._call("observe", self.session.observe, agent)
        if not self.people:
            print(f"\n{printable(seen.text)}")
        try:
            action = self.others[agent].act(seat, self.session)
        except OutOfTokens as stop:
            if not self._secret:
                print(f"{agent} has no tokens left for another reply ({stop.reason.value})")
            self._silent.add(agent)
            return None
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            raise CannotGoOn from None
        reply = seat.said()
        written = action if reply is None else repr(reply) if reply.strip() != reply or "\n" in reply else reply
        # A reply, and in many games an action, is not for the person at the table: the game tells what all may know.
        shown = "(has replied)" if self.people else printable(written)
        if not self._secret:
            print(f"{agent}{_turns_left(seen)} ({seat.module_id})> {shown}")
        return action

    @property
    def _secret(self) -> bool:
        """A person plays who must not see who sits where."""
        return self.session.secret_seats and bool(self.people)

    def _report(self, result: StepResult) -> None:
        """What a step paid, and at the end the verdict."""
        shown = self.people if self._secret and not result.done else tuple(result.rewards)
        rewards = {agent: result.rewards[agent] for agent in shown if agent in result.rewards}
        if not self._secret or any(rewards.values()):
            print("reward: " + ", ".join(f"{agent} {reward:g}" for agent, reward in rewards.items()))
        if result.done:
            _verdict(self.session, result, self.totals, (self.people or self.session.agent_ids)[0])

    def _credit(self, actions: Mapping[str, str], result: StepResult) -> None:
        for agent, seat in self.seats.items():
            if agent in actions:
                seat.acted(bool(result.infos.get(agent, {}).get("invalid_action")))
        for agent, reward in result.rewards.items():
            self.totals[agent] += reward


def _with_plain_infos(result: StepResult) -> StepResult:
    """What a game of others reports is looked at as in training."""
    from rllib_lmgame.rollouts.game_calls import plain_info

    return dataclasses.replace(result, infos={agent: plain_info(info) for agent, info in result.infos.items()})


def _turns_left(seen: Observation) -> str:
    return "" if seen.turns_left is None else f" ({seen.turns_left} turns left)"


def _read(prompt: str) -> str:
    """A line that was typed; one from a pipe or file is shown, as a terminal would show it."""
    try:
        text = input(prompt)
    except EOFError:
        print()  # ends the line of the prompt
        raise Left from None
    if not sys.stdin.isatty():
        print(text)
    return text


def _verdict(session: GameSession, result: StepResult, totals: Mapping[str, float], viewer: str) -> None:
    """How the game ended, for all; the state as ``viewer`` sees it."""
    print(f"\n{printable(session.observe(viewer).text)}\n")
    ending = "the game is over" if result.terminated else "the budget is used up"
    print(f"{ending}; return: " + ", ".join(f"{agent} {total:g}" for agent, total in totals.items()))
    won = [agent for agent in session.agent_ids if result.infos.get(agent, {}).get("success")]
    print("success: " + (", ".join(won) or "none"))
    measures = {agent: result.infos.get(agent, {}).get("measures") or {} for agent in session.agent_ids}
    of_all = len(measures) > 1 and all(found == measures[viewer] for found in measures.values())
    for agent, found in ({"all": measures[viewer]} if of_all else measures).items():
        if found:
            print(f"{agent}: " + ", ".join(f"{name} {number:g}" for name, number in found.items()))
