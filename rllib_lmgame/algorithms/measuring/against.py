"""``evaluation_config.measures: [{type: against, player: random}]``: games against a scripted player."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rllib_lmgame.algorithms.games import is_for_one
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import limits
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.envs.contract.verdicts import Outcome
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, make_scripted_player
from rllib_lmgame.rollouts.batch_inference import Answer, NoRoom, NotAnswered
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.game_calls import abandon, call_game, open_session, run_to_end
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode, PlayedPlans, Sessions, first_error, play_many
from rllib_lmgame.rollouts.players import Player, Scripted, take_seats
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

logger = logging.getLogger(__name__)

AT_ONCE = 128
"""Games in play at once, at most."""

_problems: dict[tuple[str, str, str], str | None] = {}
"""Game, the game that is played, and player -> why there are no such games."""


class Against:
    """Games in which the policies take one seat and a scripted player the others, each seat as often.

    Gives ``win_rate_<name>``, ``draw_rate_<name>``, ``loss_rate_<name>`` and ``failed_<name>``, which sum to 1. Failed
    games crashed, outgrew the context, or were too slow (``text_rollouts``). ``illegal_<name>`` is the mean probability
    of illegal replies. Replies are drawn among the legal ones. In free talk, which lists none, a reply is drawn, and is
    illegal if it cannot be read. The levels are the same at every call.

    Args:
        player: The opponent: a scripted player by name, or ``package.module:Class``.
        games: How many are played.
        name: At the end of the numbers' names; by default the player's.
        env_config: On top of the game's, for its solver's strength: ``{expert_depth: 2}``. Games that refuse it are
            left out.
        greedy: Play what is most likely; drawn replies (free talk, or after reasoning) are at temperature 0.
    """

    def __init__(
        self,
        player: str,
        games: Annotated[int, limits(ge=1, le=1_000_000)] = 128,
        name: str | None = None,
        env_config: dict[str, Any] | None = None,
        greedy: bool = False,
    ) -> None:
        make_scripted_player(player, "player")
        self.name = player if name is None else name
        if not re.fullmatch(r"\w+", self.name):
            raise ConfigError(
                "name", f"{self.name!r} cannot end the name of a number; set `name` to letters and digits"
            )
        self.player = player
        self.games = games
        self.env_config = dict(env_config or {})
        self.greedy = greedy
        self.columns = tuple(
            f"{what}_{self.name}" for what in ("win_rate", "draw_rate", "loss_rate", "failed", "illegal")
        )

    def problem(self, game: GameConfig) -> str | None:
        """Why there are no such games of ``game``, or ``None``: found out once per process."""
        changed = self._changed(game)
        asked = (game.key, changed.key, self.player)
        if asked not in _problems:
            _problems[asked] = self._look_at(game.env, changed)
        return _problems[asked]

    def _look_at(self, env: str, game: GameConfig) -> str | None:
        """What is wrong with a game, which has the measure's ``env_config``; its calls are watched as in play."""
        if is_for_one(game):
            return f"nobody plays against another in {env}"
        try:
            session = run_to_end(open_session(game, CALL_LIMIT_S))
        except ConfigError as error:
            return f"{env} does not take the measure's env_config: {error}"
        except EpisodeFailed as error:
            return str(error)
        try:
            return self._lacking(session)
        except EpisodeFailed as error:
            return str(error)
        finally:
            abandon(session)

    def _lacking(self, session: GameSession) -> str | None:
        if len(session.agent_ids) == 1 or session.cooperative:
            return f"nobody plays against another in {session.game_id}"
        call_game(session, "reset", session.reset, 0)
        acting = call_game(session, "to_act", session.to_act)
        if not acting:
            return f"nobody is to act at the beginning of {session.game_id}"
        seen = call_game(session, "observe", session.observe, acting[0])
        if self.player in SCRIPTED_PLAYERS:
            player = make_scripted_player(self.player)
            try:
                call_game(session, "the player", player.act, session, acting[0], seen, random.Random(0))
            except ConfigError as error:
                return error.message
        return None

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        game, asked = self._changed(game), _Policies(policies, self.greedy)
        try:
            played = run_to_end(self._play(game, asked, policies.rollout_options))
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        except EpisodeFailed as error:  # The game could not be built.
            logger.warning("%s", error)
            played = PlayedPlans([], [], [])
        if asked.gone is not None:
            raise asked.gone
        if played.failures:
            logger.warning(
                "%d games of the measure `against` failed, the first: %s",
                len(played.failures),
                played.failures[0].message,
            )
        ended = Counter(map(_outcome, played.episodes))
        counts = [ended[what] for what in (Outcome.WIN, Outcome.DRAW, Outcome.LOSS)]
        shares = [count / self.games for count in (*counts, self.games - sum(counts))]
        return dict(zip(self.columns, [*shares, asked.illegal / max(1, asked.answered)], strict=True))

    def _changed(self, game: GameConfig) -> GameConfig:
        return GameConfig(env=game.env, env_config={**game.env_config, **self.env_config})

    async def _play(self, game: GameConfig, asked: _Policies, options: TextRolloutOptions) -> PlayedPlans:
        opponent = Scripted(self.player)
        seats = partial(take_seats, player_of=lambda one: asked if one.trained else opponent, seed=_seat_seed)
        with closing(Sessions()) as sessions:
            first = await open_session(game, options.env_step_timeout_s)
            sessions.release(game, first)
            plans = [self._plan(number, first.agent_ids) for number in range(self.games)]
            return await play_many(plans, [game], seats, sessions, options, AT_ONCE)

    def _plan(self, number: int, agents: Sequence[str]) -> EpisodePlan:
        """Game ``number``: as many as there are seats have the same level."""
        level = stable_seed("against", number // len(agents))
        own = agents[number % len(agents)]
        assignments = {agent: AgentAssignment(self.player, self.player) for agent in agents}
        assignments[own] = AgentAssignment("", trained=True)
        return EpisodePlan(f"against-{number}", 0, level, f"against-{level}", number, assignments=assignments)


def _seat_seed(plan: EpisodePlan, agent: str) -> int:
    return stable_seed("against", plan.index, "replies" if plan.assignments[agent].trained else agent)


def _outcome(episode: PlayedEpisode) -> str | None:
    """How it ended for the policy."""
    (own,) = (seat for seat in summarize(episode).seats if seat.trained)
    return own.outcome


class _Policies(Player):
    """The policies as a player.

    Attributes:
        illegal: Sum of the probabilities of illegal replies, over all answers.
        answered: How many answers there were.
        gone: What an engine failed with: all games end.
    """

    def __init__(self, policies: AskedPolicies, greedy: bool) -> None:
        super().__init__("")
        self.greedy = greedy
        self.illegal = 0.0
        self.answered = 0
        self.gone: NotAnswered | None = None
        self._policies = policies

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        """See :class:`Player`."""
        return _PolicySeat(agent, session.roles[agent], self.name, player=self, game=plan.index, seed=seed)

    async def ask(self, game: int, decision: InformationSet) -> Answer:
        """The policies' reply in a game, given by its number.

        Raises: EpisodeFailed: there is no room for a reply, or an engine failed.
        """
        try:
            if self.gone is None:
                answer = await self._policies.answer(decision, game, greedy=self.greedy)
                self.illegal += answer.illegal
                self.answered += 1
                return answer
        except NoRoom as error:
            raise EpisodeFailed(StopReason.CONTEXT_OVERFLOW, str(error)) from error
        except NotAnswered as error:
            self.gone = error
        raise EpisodeFailed(StopReason.ENGINE_ERROR, str(self.gone))


@dataclass(kw_only=True)
class _PolicySeat(Seat):
    player: _Policies
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
            session.functions,
            self.role,
        )
        odds = (await self.player.ask(self.game, decision)).odds
        action = (
            max(odds, key=lambda reply: odds[reply])
            if self.player.greedy
            else self._chance.choices(list(odds), list(odds.values()))[0]
        )
        self._replies += (action,)
        return action
