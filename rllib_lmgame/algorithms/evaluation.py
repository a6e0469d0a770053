"""Evaluating a checkpoint: its Hugging Face files, the games of its configuration, an engine; no learner."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_lmgame.algorithms.checkpoints import hf_directory
from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.games import on_split
from rllib_lmgame.algorithms.ray_cluster import join_existing
from rllib_lmgame.algorithms.saved_config import open_checkpoint
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.model_files import ModelFiles
from rllib_lmgame.rollouts.env_runner import GameConfig, PlayResult, PlaySettings, TextGameEnvRunner
from rllib_lmgame.rollouts.episodes import success_by_level
from rllib_lmgame.rollouts.plans import plan_episodes
from rllib_lmgame.rollouts.seats import EpisodeFailed
from rllib_lmgame.telemetry.metrics import episode_metrics

_LOG = "episodes"


@dataclass
class LoadedPolicies:
    """Policies of a checkpoint, ready to play.

    Attributes:
        config: Configuration of the run that wrote the checkpoint.
        runner: Plays; its engines live as long as the context they came from.
    """

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
        keep: str = "nothing",
    ) -> PlayResult:
        """Play ``num_episodes`` of every game on fixed levels (those of the evaluation during training).

        Raises:
            EpisodeFailed: if not one episode could be played to its end.
        """
        plans = plan_episodes(num_episodes * len(games), run_seed=0, purpose="evaluation", iteration=0, game_weights=[1.0] * len(games))
        result = self.runner.play(plans, PlaySettings(games, temperature=temperature, players=players or {}, log=log, keep=keep))
        if result.error is not None:
            raise result.error
        if result.failures and not result.summaries:
            first = result.failures[0]
            raise EpisodeFailed(StopReason(first.reason), f"none of {len(result.failures)} episodes could be played; the first: {first.message}")
        return result


@contextmanager
def loaded_policies(
    checkpoint: str | Path,
    *,
    log_dir: str | None = None,
    overrides: dict[str, Any] | None = None,
    trust: bool = False,
    games: Sequence[str] = (),
) -> Iterator[LoadedPolicies]:
    """Start engines on a checkpoint's weights; they stop when the context ends.

    Args:
        checkpoint: Directory.
        log_dir: Directory of episode logs.
        overrides: Configuration on top of the checkpoint's own.
        trust: Take from the checkpoint what could run code, also if none of this user's runs wrote it (:mod:`.saved_config`).
        games: Games the user named instead of the checkpoint's.
    """
    import ray

    from rllib_lmgame.algorithms.base import initial_model
    from rllib_lmgame.algorithms.engines import start_engines

    directory, config = open_checkpoint(checkpoint, trust=trust, games=games)
    config.update_from_dict(overrides or {})
    trained = config.trained_policies()
    for policy in config.language_model_policies():
        is_saved = policy in trained
        config.model_files[policy] = ModelFiles(str(hf_directory(directory, policy, trained))) if is_saved else initial_model(config, policy)
    config.episode_log_dir = log_dir
    started_ray = not ray.is_initialized()
    if started_ray and not join_existing(log_to_driver=False):
        ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=max(os.cpu_count() or 1, 4))
    groups: dict[str, Any] = {}
    try:
        groups = start_engines(config)
        config.engine_names = {policy: list(group.names) for policy, group in groups.items()}
        runner = TextGameEnvRunner(config=config, worker_index=0)
        try:
            yield LoadedPolicies(config, runner)
        finally:
            runner.stop()
    finally:
        for group in groups.values():
            group.shutdown()
        if started_ray:
            ray.shutdown()


@contextmanager
def _log_directory(out: str | Path | None) -> Iterator[str | None]:
    """A directory for the log of an evaluation, which becomes ``out`` at the end; ``None`` if there is no ``out``."""
    if out is None:
        yield None
        return
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists; name another file, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as directory:
        yield directory
        written = Path(directory) / f"{_LOG}-0.jsonl"
        if written.exists():
            written.rename(out)


def evaluate_checkpoint(
    path: str | Path,
    *,
    env: str | None = None,
    env_config: dict[str, Any] | None = None,
    num_episodes: int = 512,
    temperature: float | None = None,
    split: str = "test",
    players: dict[str, str] | None = None,
    out: str | Path | None = None,
    trust: bool = False,
) -> dict[str, Any]:
    """Play episodes with the policies of a checkpoint.

    Args:
        path: Checkpoint directory.
        env: Game; by default those of the checkpoint's evaluation.
        env_config: On top of the game's configuration.
        num_episodes: Episodes per game.
        temperature: 0 is greedy; by default the temperature of training.
        split: Levels, where the game has splits.
        players: Policy -> scripted player that plays instead of it.
        out: File of the episode log (JSONL), which must not exist yet; it is missing afterwards if it could not be written.
        trust: Take from the checkpoint what could run code, also if none of this user's runs wrote it (:mod:`.saved_config`).

    Returns:
        Metrics of :func:`~rllib_lmgame.telemetry.metrics.episode_metrics`, and ``successes`` (by level).
    """
    named = () if env is None else (env,)
    with _log_directory(out) as log_dir, loaded_policies(path, log_dir=log_dir, trust=trust, games=named) as policies:
        base = (GameConfig(env, {}),) if env is not None else policies.config.games_for_evaluation(split)
        games = tuple(GameConfig(game.env, {**game.env_config, **(env_config or {})}, game.weight) for game in base)
        result = policies.play(on_split(games, split, override=True), num_episodes, temperature=temperature, players=players, log=log_dir and _LOG)
    numbers = episode_metrics(result.summaries, (failure.reason for failure in result.failures))
    return {**numbers, "successes": success_by_level(result.summaries)}
