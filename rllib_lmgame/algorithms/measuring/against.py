"""``evaluation_config.measures: [{type: against, player: random}]``: games against a scripted player."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rllib_lmgame.algorithms.games import is_for_one
from rllib_lmgame.algorithms.measuring.asked_seats import Asked, Rounds
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.contract.verdicts import Outcome
from rllib_lmgame.errors import ConfigError
from rllib_lmgame.policies.scripted import SCRIPTED_PLAYERS, make_scripted_player
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.game_calls import abandon, call_game, open_session, run_to_end
from rllib_lmgame.rollouts.plans import EpisodePlan, SeatAssignment, stable_seed
from rllib_lmgame.rollouts.play import PlayedEpisode, PlayedPlans, first_error, play_many
from rllib_lmgame.rollouts.players import Scripted, take_seats
from rllib_lmgame.rollouts.records import Failure, GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.settings.schema import limits
from rllib_lmgame.settings.sections.text_rollouts import CALL_LIMIT_S, TextRolloutOptions

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.measuring.measures import AskedPolicies

logger = logging.getLogger(__name__)

AT_ONCE = 128
"""Games in play at once, at most; the policies are asked about all of them together."""

_FAILED = "failed"

_problems: dict[tuple[str, str, str], str | None] = {}
"""Game, the game that is played, and player -> why there are no such games."""


class Against:
    """Games in which the policies take one seat and a scripted player the others, each seat as often.

    Gives ``win_rate_<name>``, ``draw_rate_<name>`` and ``loss_rate_<name>``; and ``failed_<name>``, the share of games
    that came to no end: the game failed, took longer than ``text_rollouts`` allows, or outgrew the context. The four
    sum to 1. ``illegal_<name>`` is the mean probability of anything but a legal reply. What is played is drawn among
    the legal replies by their probabilities; in turns of free talk, which list none, a reply is drawn, and counts as
    illegal if it cannot be read. The games are the same levels at every call.

    Args:
        player: The opponent: a scripted player by name, or ``package.module:Class``.
        games: How many are played.
        name: At the end of the numbers' names; by default the player's.
        env_config: On top of the game's, for the strength of its solver: ``{expert_depth: 2}``. A game that does not
            take it is left out.
        greedy: Play what is most likely; replies that are drawn, in free talk or after reasoning, are so at
            temperature 0.
    """

    def __init__(
        self,
        player: str,
        games: Annotated[int, limits(low=1, high=1_000_000)] = 128,
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
        """What is wrong with a game, which has the measure's ``env_config``."""
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
        """What a game has not that is needed; its calls are watched as in play."""
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
        try:
            return run_to_end(self._numbers(self._changed(game), policies))
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    def _changed(self, game: GameConfig) -> GameConfig:
        return GameConfig(game.env, {**game.env_config, **self.env_config})

    async def _numbers(self, game: GameConfig, policies: AskedPolicies) -> dict[str, float]:
        ended: Counter[str] = Counter()
        rounds = Rounds(policies, self.greedy)
        try:
            rounds.free.append(await open_session(game, policies.rollout_options.env_step_timeout_s))
            agents = rounds.free[0].agent_ids
            for start in range(0, self.games, AT_ONCE):
                plans = [self._plan(number, agents) for number in range(start, min(start + AT_ONCE, self.games))]
                played = await self._play(plans, game, rounds, policies.rollout_options)
                ended.update(_outcome(episode) for episode in played.episodes)
                ended[_FAILED] += len(played.failures)
                _tell(played.failures)
        except EpisodeFailed as error:  # The game could not be built.
            logger.warning("%s", error)
            ended[_FAILED] = self.games
        finally:
            rounds.close()
        shares = [ended[what] / self.games for what in (Outcome.WIN, Outcome.DRAW, Outcome.LOSS, _FAILED)]
        return dict(zip(self.columns, [*shares, rounds.illegal / max(1, rounds.answered)], strict=True))

    async def _play(
        self, plans: Sequence[EpisodePlan], game: GameConfig, rounds: Rounds, options: TextRolloutOptions
    ) -> PlayedPlans:
        """Games side by side, each within the limits of an episode."""
        async with asyncio.TaskGroup() as group:
            group.create_task(rounds.answer(len(plans)))
            policy, opponent = Asked(rounds, self.greedy), Scripted(self.player)
            seats = partial(take_seats, player_of=lambda one: policy if one.trained else opponent, seed=_seat_seed)
            return await play_many(plans, [game], seats, rounds, options, len(plans))

    def _plan(self, number: int, agents: Sequence[str]) -> EpisodePlan:
        """Game ``number``: as many as there are seats have the same level."""
        level = stable_seed("against", number // len(agents))
        own = agents[number % len(agents)]
        line_up = {agent: SeatAssignment(self.player, self.player) for agent in agents}
        line_up[own] = SeatAssignment("", trained=True)
        return EpisodePlan(f"against-{number}", 0, level, f"against-{level}", number, line_up=line_up)


def _seat_seed(plan: EpisodePlan, agent: str) -> int:
    return stable_seed("against", plan.index, "replies" if plan.line_up[agent].trained else agent)


def _outcome(episode: PlayedEpisode) -> str:
    """How it ended for the policy."""
    (own,) = (seat for seat in summarize(episode).seats if seat.trained)
    return own.outcome or _FAILED


def _tell(failures: Sequence[Failure]) -> None:
    if failures:
        logger.warning("%d games of the measure `against` failed, the first: %s", len(failures), failures[0].message)
