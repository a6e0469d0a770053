"""Games whose policies are asked for the probabilities of their replies, in all games at once; for what they say, in
turns that list no legal replies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.rollouts.asking import Answer, NoRoom
from rllib_lmgame.rollouts.game_calls import abandon, in_daemon_thread
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.players import Player
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies


class Rounds:
    """Asks the policies for all games together, whenever each game that is not over waits for an answer: what is asked
    together depends on the games, not on which of them was quicker. Keeps the games between episodes
    (:class:`~rllib_lmgame.rollouts.play.Sessions`).

    Args:
        policies: What is asked.
        greedy: Replies that are drawn, in free words or after reasoning, are so at temperature 0.

    Attributes:
        free: Games that are not in play.
        illegal: Sum of the probabilities of anything but a legal reply, over all answers.
        answered: How many answers there were.
    """

    def __init__(self, policies: AskedPolicies, greedy: bool = False) -> None:
        self.free: list[GameSession] = []
        self.illegal = 0.0
        self.answered = 0
        self._policies = policies
        self._greedy = greedy
        self._in_play = 0
        self._waiting: dict[int, tuple[InformationSet, asyncio.Future[Answer | None]]] = {}
        self._all_wait = asyncio.Event()

    async def ask(self, game: int, decision: InformationSet) -> Answer:
        """What the policy would reply in a game, given by its number.

        Raises:
            EpisodeFailed: if the decision leaves no room for a reply.
        """
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._waiting[game] = (decision, future)
        self._look()
        try:
            answer = await future
        finally:
            self._waiting.pop(game, None)
        if answer is None:
            raise EpisodeFailed(StopReason.CONTEXT_OVERFLOW, "the game outgrew language_model.context_length")
        return answer

    async def answer(self, games: int) -> None:
        """Answer until so many games are over.

        Raises:
            NotAnswered: if an engine failed.
        """
        self._in_play = games
        self._all_wait.clear()
        while self._in_play:
            await self._all_wait.wait()
            self._all_wait.clear()
            asked = {game: self._waiting[game] for game in sorted(self._waiting)}
            self._waiting.clear()
            decisions = {game: decision for game, (decision, _) in asked.items()}
            answers = await in_daemon_thread(self._answers, decisions) if asked else {}
            for game, (_, future) in asked.items():
                if not future.done():  # Its game was given up in the meantime.
                    future.set_result(answers.get(game))

    def close(self) -> None:
        """Close the games."""
        while self.free:
            abandon(self.free.pop())

    def free_session(self, game: GameConfig) -> GameSession | None:
        """A game that is not in play, if there is one; all are alike."""
        return self.free.pop() if self.free else None

    def release(self, game: GameConfig, session: GameSession) -> None:
        """Keep ``session`` for the next episode."""
        self.free.append(session)

    def forget(self, plan: EpisodePlan) -> None:
        """The episode is over."""
        self._in_play -= 1
        self._look()

    def _look(self) -> None:
        if len(self._waiting) >= self._in_play:
            self._all_wait.set()

    def _answers(self, decisions: Mapping[int, InformationSet]) -> dict[int, Answer]:
        """An answer to the decision in each game, by its number; none where there is no room for one."""
        choices = {game: decision for game, decision in decisions.items() if decision.legal_actions}
        words = {game: decision for game, decision in decisions.items() if game not in choices}
        found = _fitting(choices, self._choices) | _fitting(words, self._words)
        self.illegal += sum(answer.illegal for answer in found.values())
        self.answered += len(found)
        return found

    def _choices(self, decisions: Sequence[InformationSet], games: Sequence[int]) -> list[Answer]:
        ask = self._policies
        if ask.reasoning:
            return ask.ask_for_samples(decisions, 1, greedy=self._greedy, numbers=games)
        return ask.ask(decisions)

    def _words(self, decisions: Sequence[InformationSet], games: Sequence[int]) -> list[Answer]:
        return self._policies.ask_for_words(decisions, greedy=self._greedy, numbers=games)


def _fitting(
    decisions: Mapping[int, InformationSet],
    ask: Callable[[Sequence[InformationSet], Sequence[int]], list[Answer]],
) -> dict[int, Answer]:
    """Answers in the games whose decisions leave room for one."""
    while decisions:
        try:
            answers = ask([*decisions.values()], [*decisions])
        except NoRoom as error:
            full = {id(decision) for decision in error.decisions}
            decisions = {game: decision for game, decision in decisions.items() if id(decision) not in full}
            continue
        return dict(zip(decisions, answers, strict=True))
    return {}


class Asked(Player):
    """A policy that is asked for the probabilities of its legal replies, of which one is drawn, or for what it says.

    Args:
        rounds: Who asks it.
        greedy: Play what is most likely.
    """

    def __init__(self, rounds: Rounds, greedy: bool) -> None:
        super().__init__("")
        self.rounds = rounds
        self.greedy = greedy

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """See :class:`Player`."""
        return _AskedSeat(agent, session.roles[agent], self.name, player=self, game=plan.index, seed=seed)


@dataclass(kw_only=True)
class _AskedSeat(Seat):
    player: Asked
    game: int
    seed: int

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._observations: tuple[str, ...] = ()
        self._replies: tuple[str, ...] = ()

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        self._observations += (observation.text,)
        decision = InformationSet(
            self.agent_id,
            session.agent_ids.index(self.agent_id),
            self._observations,
            self._replies,
            observation.legal_actions,
            session.instructions,
        )
        odds = (await self.player.rounds.ask(self.game, decision)).odds
        action = (
            max(odds, key=lambda reply: odds[reply])
            if self.player.greedy
            else self._chance.choices(list(odds), list(odds.values()))[0]
        )
        self._replies += (action,)
        return action
