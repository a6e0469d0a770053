"""Ray gauges: the numbers of a run at the dashboard's Prometheus endpoint."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_lmgame.base.schedule import number_at

EPISODE_GAUGES = {
    "success_rate": "Success of the trained policies",
    "episode_return_mean": "Mean return of an episode",
    "invalid_action_rate": "Share of actions the game refused",
    "tokens_per_turn": "Tokens in a reply",
    "generated_tokens_per_s": "Tokens sampled per second",
    "engine_busy_fraction": "Share of the rollout the engines were busy",
}
PROGRESS_GAUGES = {
    "training_iteration": "Iterations, of any phase",
    "supervised_steps": "Optimizer steps of supervised learning",
    "rl_iteration": "Iterations after the warm start",
}
"""There from the start, also in a phase that plays no games of its own."""
EVALUATION_GAUGES = {"evaluation_success_rate": "Success in the last evaluation or validation"}
LEARNER_GAUGES = {
    "policy_loss": "Policy loss",
    "vf_loss": "Value loss",
    "mean_kl_loss": "KL to the reference, with training.kl",
    "entropy": "Entropy per token",
    "logprob_diff": "Largest difference of learner's and sampler's log-probabilities",
    "grad_norm": "Gradient norm",
    "trained_tokens_per_s": "Action tokens trained per second",
    "staleness": "Updates between the weights that sampled and those that train",
}

TELL_AGAIN_S = 5.0
"""Ray's endpoint forgets a gauge that nobody has set for some 20 s, and an iteration can take minutes."""


class LMGameGauges(RLlibCallback):
    """Sets ``lmgame_*`` gauges from every training result; their label ``trial`` is Tune's name of the trial."""

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}
        self._last: dict[tuple[str, str, str], float] = {}
        self._ended = threading.Event()
        weakref.finalize(self, self._ended.set)

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Processes are up: the trial is there before its first result."""
        for name, doc in PROGRESS_GAUGES.items():
            self._set(name, doc, 0, _trial_of(algorithm), "")
        threading.Thread(
            target=_go_on, args=(weakref.ref(self), self._ended), name="lmgame-gauges", daemon=True
        ).start()

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        trial, played = _trial_of(algorithm), result.get("env_runners") or {}
        for numbers, gauges in ((result, PROGRESS_GAUGES), (played, EPISODE_GAUGES)):
            for name, doc in gauges.items():
                self._set(name, doc, number_at(numbers, name), trial, "")
        evaluated = number_at(result, "evaluation/env_runners/success_rate")
        self._set("evaluation_success_rate", EVALUATION_GAUGES["evaluation_success_rate"], evaluated, trial, "")
        for module_id, numbers in (result.get("learners") or {}).items():
            for name, doc in LEARNER_GAUGES.items() if isinstance(numbers, Mapping) else ():
                self._set(name, doc, number_at(numbers, name), trial, str(module_id))

    def _set(self, name: str, doc: str, value: float | None, trial: str, policy: str) -> None:
        from ray.util.metrics import Gauge

        if value is None:  # An iteration did not measure it.
            return
        if name not in self._gauges:
            self._gauges[name] = Gauge(f"lmgame_{name}", description=doc, tag_keys=("trial", "policy"))
        self._last[name, trial, policy] = float(value)
        self._gauges[name].set(float(value), tags={"trial": trial, "policy": policy})

    def tell_again(self) -> None:
        """Set every gauge to its last value."""
        for (name, trial, policy), value in list(self._last.items()):
            self._gauges[name].set(value, tags={"trial": trial, "policy": policy})

    def close(self) -> None:
        """The algorithm has ended: nothing is told any more."""
        self._ended.set()


def _go_on(of: weakref.ref[LMGameGauges], ended: threading.Event) -> None:
    import ray

    while not ended.wait(TELL_AGAIN_S):
        gauges = of()
        if gauges is None or not ray.is_initialized():
            return
        gauges.tell_again()
        del gauges


def _trial_of(algorithm: Any) -> str:
    return str(getattr(algorithm, "trial_name", "") or "")
