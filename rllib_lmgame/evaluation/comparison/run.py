"""Plays an evaluation: all players on the same levels, every episode written down as it ends.

1. Who plays what on which level with which seed follows from the player, the game, the level and the sample alone:
   other players and games beside them change nothing, nor does an interruption.
2. What a game needs beside it and is not there (a server, a judge) is told before anybody plays.
3. A failed episode is dropped, counted and written down with its reason, and played again by the same command.
4. Players are loaded one after the other, and one who has played everything is not loaded again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.evaluation.comparison.files import KEY, EvaluationDirectory, Place
from rllib_lmgame.evaluation.comparison.models import EvaluatedModel
from rllib_lmgame.evaluation.recorded import RecordedGames, roles_of
from rllib_lmgame.rollouts.episode_log import episode_record
from rllib_lmgame.rollouts.episodes import summarize
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.players import Player
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig

_OF_PLAY = ("env", "env_config", "language_model", "temperature")
"""Of a game's entry, what an evaluation goes by."""


@dataclass(frozen=True)
class Evaluation:
    """What is to be played: ``samples`` episodes on each level of every game, by everybody.

    There are ``levels`` of them where a game does not say how many episodes it has.

    ``at_once`` games are in play at the same time; ``None`` leaves it to the players.
    """

    games: Mapping[str, GameConfig]
    models: Sequence[EvaluatedModel]
    levels: int
    samples: int = 1
    opponents: Mapping[str, Player] = field(default_factory=dict)
    at_once: int | None = None

    def settings(self) -> dict[str, Any]:
        """What makes it this evaluation and no other, as plain data."""
        return {
            "games": {
                name: {key: each for key, each in game.as_mapping().items() if key in _OF_PLAY}
                for name, game in self.games.items()
            },
            "players": {model.name: model.identity() for model in self.models},
            "against": {name: player.identity() for name, player in self.opponents.items()},
        }

    def plans(self) -> Iterator[tuple[str, int, int, EpisodePlan]]:
        """Game, level, sample and plan of each episode of a player, in order."""
        for number, (game, config) in enumerate(self.games.items()):
            for level, plan in enumerate(evaluated_levels([config], self.levels)):
                for sample in range(self.samples):
                    name = f"{game}-{sample}-{level}"
                    yield game, level, sample, dataclasses.replace(plan, episode_id=name, game=number)


@dataclass
class Results:
    """What was played, also by earlier calls, in the order of the plans; ``failures`` (records) of this one."""

    played: dict[Place, EpisodeSummary] = field(default_factory=dict)
    failures: dict[Place, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    def of(self, player: str, game: str) -> dict[Place, EpisodeSummary]:
        return {place: one for place, one in self.played.items() if (place.player, place.game) == (player, game)}


async def play_evaluation(
    evaluation: Evaluation,
    directory: EvaluationDirectory | None = None,
    begun: Callable[[int, int], None] = lambda played, planned: None,
    ended: Callable[[], object] = lambda: None,
) -> Results:
    """Play what has not been played yet, and write it to ``directory``, which the caller holds.

    ``begun`` is called with the episodes played before and those planned, ``ended`` with every one that ends.

    Raises: ConfigError: a game or player cannot begin, or the directory of another evaluation; MissingDependencyError;
    OSError: an episode could not be written.
    """
    settings = {} if directory is None else evaluation.settings()
    before = {} if directory is None else directory.played(settings)
    plans = [*evaluation.plans()]
    planned = {
        Place(model.name, game, level, sample): (model, plan)
        for model in evaluation.models
        for game, level, sample, plan in plans
    }
    played = {place: before[place] for place in planned if place in before}
    left = {place: planned[place] for place in planned if place not in before}
    unplayed = {game for _, game, *_ in left}
    roles = [
        await roles_of(game, CALL_LIMIT_S, "--games", beside=name in unplayed)
        for name, game in evaluation.games.items()
    ]
    begun(len(played), len(planned))
    results = Results(dict(played))
    if directory is not None:
        directory.begin(settings)
    games = [*evaluation.games.values()]

    def keep(place: Place, played: PlayedEpisode) -> dict[str, Any]:
        summary = summarize(played)
        results.played[place] = summary
        return {KEY: {**place._asdict(), "summary": dataclasses.asdict(summary)}, **episode_record(played)}

    recorded = RecordedGames(directory, keep, ended)
    async with AsyncExitStack() as stack:
        if left:
            for opponent in evaluation.opponents.values():
                await stack.enter_async_context(opponent)
        for model in sorted(evaluation.models, key=lambda model: model.turn):
            own = {
                place: dataclasses.replace(plan, assignments=model.assignments(plan, roles[plan.game]))
                for place, (whose, plan) in left.items()
                if whose is model
            }
            if own:
                at_once = evaluation.at_once or model.at_once
                async with model:
                    with closing(model.sessions()) as sessions:
                        await recorded.play(own, games, model.player, sessions, model.options, at_once)
    results.played = {place: results.played[place] for place in planned if place in results.played}
    results.failures = {place: recorded.failures[place] for place in planned if place in recorded.failures}
    spent = {model.name: model.counts() for model in evaluation.models}
    spent |= {name: player.counts() for name, player in evaluation.opponents.items()}
    results.counts = {name: counts for name, counts in spent.items() if counts}
    return results
