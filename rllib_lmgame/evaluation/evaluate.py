"""Evaluates a checkpoint: its files, games and an engine; no learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.cluster.ray_cluster import be_connected
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.games import has_splits, on_split
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.evaluation.saved_config import model_of, open_checkpoint
from rllib_lmgame.measures.normalised import score_in
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import episode_metrics, over_levels, returns_by_seat, unread_replies
from rllib_lmgame.rollouts.records import EpisodeSummary, GameConfig
from rllib_lmgame.telemetry.metrics import MOSTLY


def saved_policies(checkpoint: str | Path, *, trust: bool = False) -> LMGameConfig:
    """The configuration of a checkpoint with the files of its models; see :func:`~.saved_config.open_checkpoint`."""
    directory, config = open_checkpoint(checkpoint, trust=trust)
    for policy in config.language_model_policies():
        config.model_files[policy] = model_of(directory, config, policy)
    return config


@contextmanager
def engines_for(config: LMGameConfig, log_dir: str | None) -> Iterator[TextGameEnvRunner]:
    """What plays with engines on the models of ``config``; without a Ray cluster one is joined or started."""
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
        yield runner


def games_of_run(config: LMGameConfig, split: str, env_config: Mapping[str, Any]) -> tuple[GameConfig, ...]:
    """What a run was trained on, on levels of ``split``.

    ``env_config`` goes on top of the options of each. Raises: ConfigError: it was trained on no game.
    """
    games = config.evaluated_games()
    if not games:
        raise ConfigError("--games", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
    changed = [game.model_copy(update={"env_config": {**game.env_config, **env_config}}) for game in games]
    return on_split(changed, split, override=True)


def game_numbers(
    game: GameConfig,
    summaries: Sequence[EpisodeSummary],
    dropped: Iterable[str],
    *,
    temperature: float | None,
    samples: int = 1,
) -> dict[str, Any]:
    """A row of the table of ``rllib evaluate``: the game's name, options and split, ``temperature``, metrics, different
    ``levels`` and returns.

    ``success_interval`` is over levels, missing for one. ``unreadable`` shows some replies, if most
    could not be read.

    Args:
        dropped: Reasons of episodes without an end.
        temperature: Of replies in this game; ``None`` where it is not known, or nobody has one.
        samples: A level.
    """
    numbers = episode_metrics(summaries, dropped)
    split = game.env_config.get("split") if has_splits(game.env) else None
    played = {"game": game.called(game.env), "env_config": dict(game.env_config), "split": split}
    played |= {} if temperature is None else {"temperature": temperature}
    most_unread = numbers.get("format_error_rate", 0.0) > MOSTLY
    unread = {"unreadable": unread_replies(summaries)} if most_unread else {}
    score = score_in(game.env, game.env_config, numbers["episode_return_mean"]) if summaries else None
    scored = {} if score is None else {"score": score}
    return {**played, **numbers, **returns_by_seat(summaries), **_over_levels(summaries), **unread, **scored}


def _over_levels(summaries: Sequence[EpisodeSummary]) -> dict[str, Any]:
    levels, rate = over_levels(summaries)
    found: dict[str, Any] = {} if levels is None else {"levels": levels}
    if rate is not None and rate.interval is not None:
        found["success_interval"] = list(rate.interval)
    return found
