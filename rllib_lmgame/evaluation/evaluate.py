"""Evaluates a checkpoint: its files, games and an engine; no learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.cluster.ray_cluster import be_connected
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.games import found_beside, has_splits, on_split
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.measures.normalised import score_in
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import (
    episode_metrics,
    over_levels,
    returns_by_seat,
    success_by_seed,
    unread_replies,
)
from rllib_lmgame.rollouts.game_calls import opened
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig, PlayResult, PlaySettings
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.rollouts.sources import AgentMapper
from rllib_lmgame.telemetry.metrics import MOSTLY


@dataclass
class LoadedPolicies:
    """Policies of a checkpoint, ready to play as long as the context of their engines lives."""

    config: LMGameConfig
    runner: TextGameEnvRunner

    def play(
        self,
        games: tuple[GameConfig, ...],
        num_episodes: int,
        *,
        temperature: float | None = None,
        players: dict[str, str] | None = None,
        log: str | None = None,
    ) -> PlayResult:
        """Play ``num_episodes`` of every game on fixed levels, those of the evaluation during training.

        ``players``: policy -> scripted player that plays instead of it.

        Raises: EpisodeFailed: if no episode could be played to its end.
        """
        agent_mapper = AgentMapper(self.config, players)
        seated, failures = agent_mapper.assigned(evaluated_levels(games, num_episodes), games)
        seeded = self.config.run.deterministic
        settings = PlaySettings(games, temperature=temperature, seeded=seeded, log=log, keep="nothing")
        result = self.runner.play(seated, settings)
        if result.error is not None:
            raise result.error
        result.failures += failures
        if result.failures and not result.summaries:
            first = result.failures[0]
            raise EpisodeFailed(
                StopReason(first.reason),
                f"none of {len(result.failures)} episodes could be played; the first: {first.message}",
            )
        return result


def loaded_policies(
    checkpoint: str | Path, *, log_dir: str | None = None, trust: bool = False
) -> AbstractContextManager[LoadedPolicies]:
    """Engines on a checkpoint's weights, until the context ends; ``trust`` as in
    :func:`~.saved_config.open_checkpoint`.
    """
    return engines_for(saved_policies(checkpoint, trust=trust), log_dir)


def saved_policies(checkpoint: str | Path, *, trust: bool = False) -> LMGameConfig:
    """The configuration of a checkpoint with the files of its models; see :func:`~.saved_config.open_checkpoint`."""
    directory, config = open_checkpoint(checkpoint, trust=trust)
    for policy in config.language_model_policies():
        config.model_files[policy] = model_of(directory, config, policy)
    return config


@contextmanager
def engines_for(config: LMGameConfig, log_dir: str | None) -> Iterator[LoadedPolicies]:
    """Engines on the models of ``config``, which names their files; without a Ray cluster one is joined or started."""
    import ray

    from rllib_lmgame.algorithms.cluster.workers import each_group, start_engines

    config.episode_log_dir = log_dir
    with ExitStack() as stack:
        if be_connected(num_cpus=4):
            stack.callback(ray.shutdown)
        groups = start_engines(config, training=False)
        for group in each_group(groups):
            stack.callback(group.shutdown)
        config.engine_names = {policy: list(group.names) for policy, group in groups.items()}
        runner = TextGameEnvRunner(config=config, worker_index=0)
        stack.callback(runner.stop)
        yield LoadedPolicies(config, runner)


def check_games(games: Sequence[GameConfig]) -> None:
    """Build each game once. Raises: ConfigError: wrong options, or a data set that is not here."""
    for game in games:
        with opened(game.env, game.env_config):
            pass


def evaluate_checkpoint(
    path: str | Path,
    *,
    env: str | None = None,
    env_config: dict[str, Any] | None = None,
    num_episodes: int = 512,
    temperature: float | None = None,
    split: str = "test",
    trust: bool = False,
) -> dict[str, Any]:
    """Play episodes with the policies of a checkpoint; `rllib evaluate` also writes them down, and takes other players.

    Args:
        env: Game; by default those it was trained on.
        env_config: On top of the game's configuration.
        num_episodes: Per game.
        temperature: 0 is greedy; by default that of its evaluation during training.
        split: Levels, where the game has splits.
        trust: Also take what could run code from a checkpoint (:mod:`.saved_config`).

    Returns:
        Metrics of :func:`~rllib_lmgame.rollouts.episodes.episode_metrics`, ``temperature`` and ``successes`` (by seed).
        ``evaluated`` has per game its name, configuration, split, ``temperature``, numbers, different ``levels``, and
        returns. ``success_interval`` is over levels of the kind played, missing for one. ``success_each_level_once``
        counts each level once, where greedy play repeats levels with the same end. ``unreadable`` shows some replies,
        if most could not be read.

    Raises: ConfigError, CheckpointError: Something in it or in the games is wrong; nothing was started.
    """
    config = saved_policies(path, trust=trust)
    if env is None:
        games = games_of_run(config, split, env_config or {})
    else:
        games = on_split([GameConfig(env=env, env_config=env_config or {})], split, override=True)
    games = tuple(game.evaluated(temperature) for game in games)
    check_games(games)
    for game in games:
        found_beside(game)
    config.other_games = games
    with engines_for(config, None) as policies:
        return measure(policies, games, num_episodes, temperature)


def games_of_run(config: LMGameConfig, split: str, env_config: Mapping[str, Any]) -> tuple[GameConfig, ...]:
    """What a run was trained on, on levels of ``split``.

    ``env_config`` goes on top of the options of each. Raises: ConfigError: it was trained on no game.
    """
    games = config.evaluated_games()
    if not games:
        raise ConfigError("--games", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
    changed = [game.model_copy(update={"env_config": {**game.env_config, **env_config}}) for game in games]
    return on_split(changed, split, override=True)


def measure(
    policies: LoadedPolicies,
    games: tuple[GameConfig, ...],
    num_episodes: int,
    temperature: float | None,
    players: dict[str, str] | None = None,
) -> dict[str, Any]:
    """What :func:`evaluate_checkpoint` returns, of policies that are ready; instead of some play ``players``."""
    temperature = policies.config.run.evaluation_config.sampling if temperature is None else temperature
    result = policies.play(games, num_episodes, temperature=temperature, players=players)
    numbers = episode_metrics(result.summaries, (failure.reason for failure in result.failures))
    used = policies.config.run.inference.temperature if temperature is None else temperature
    rows = []
    for number, game in enumerate(games):
        own = [summary for summary in result.summaries if summary.game == number]
        dropped = [failure.reason for failure in result.failures if failure.plan.game == number]
        rows.append(game_numbers(game, own, dropped, temperature=game.sampled_at(used)))
    return {**numbers, "temperature": used, "successes": success_by_seed(result.summaries), "evaluated": rows}


def game_numbers(
    game: GameConfig,
    summaries: Sequence[EpisodeSummary],
    dropped: Iterable[str],
    *,
    temperature: float | None,
    samples: int = 1,
) -> dict[str, Any]:
    """An entry of ``evaluated`` (:func:`evaluate_checkpoint`).

    Args:
        dropped: Reasons of episodes without an end.
        temperature: Of replies in this game; ``None`` where it is not known, or nobody has one.
        samples: A level.
    """
    numbers = episode_metrics(summaries, dropped)
    split = game.env_config.get("split") if has_splits(game.env) else None
    played = {"game": game.called(game.env), "env_config": dict(game.env_config), "split": split}
    played |= {} if temperature is None else {"temperature": temperature}
    greedy = samples == 1 and temperature == 0
    most_unread = numbers.get("format_error_rate", 0.0) > MOSTLY
    unread = {"unreadable": unread_replies(summaries)} if most_unread else {}
    score = score_in(game.env, game.env_config, numbers["episode_return_mean"]) if summaries else None
    scored = {} if score is None else {"score": score}
    return {**played, **numbers, **returns_by_seat(summaries), **_over_levels(summaries, greedy), **unread, **scored}


def _over_levels(summaries: Sequence[EpisodeSummary], greedy: bool) -> dict[str, Any]:
    levels, rate = over_levels(summaries)
    found: dict[str, Any] = {} if levels is None else {"levels": levels}
    if rate is not None and rate.interval is not None:
        found["success_interval"] = list(rate.interval)
    if rate is not None and greedy and rate.settled is not None:
        found["success_each_level_once"] = rate.settled
    return found
