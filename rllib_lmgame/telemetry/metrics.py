"""Names of the numbers in results, and what is read out of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rllib_lmgame.base.errors import did_you_mean


class Phase(NamedTuple):
    """A phase of an iteration: what is said while it goes on, and its name in a line of progress."""

    doing: str
    name: str


PHASES = {
    "expert_s": Phase("playing the expert's episodes", "expert"),
    "rollout_s": Phase("playing", "play"),
    "update_s": Phase("updating", "update"),
    "weight_sync_s": Phase("sending the weights to the engines", "sync"),
}
READING = "reading the data"
"""Shown instead of the expert phase if the episodes come from files."""
EXPERT_TIMER, ROLLOUT_TIMER, UPDATE_TIMER, WEIGHT_SYNC_TIMER = PHASES

MOSTLY = 0.5
"""Share of unreadable replies above which that is said, and some are shown."""

OUTCOME_RATES = {"win_rate": "win", "draw_rate": "draw", "loss_rate": "loss"}
"""``<name>/<policy>/<role>``: share of the episodes that ended so for a seat of that role."""
COLLAPSE = "collapse"
"""Where a result says what collapsed, and what came of it."""
JUDGED, OUTCOMES = "judged_episodes", "outcomes"  # Numbers of episodes: of ``success_rate``, and of those rates.


MEASURES = "measures"
"""``measures/<name>``: what a game reports of itself at the end of an episode (``info["measures"]``)."""


def win_draw_loss(numbers: Mapping[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Policy, role and shares of games won, drawn and lost, of episodes' metrics, where there are numbers."""
    rates = [numbers[name] for name in OUTCOME_RATES if isinstance(numbers.get(name), Mapping)]
    if len(rates) < len(OUTCOME_RATES):
        return []
    found = [
        (policy, role, [rate[policy][role] for rate in rates]) for policy, roles in rates[0].items() for role in roles
    ]
    return [(policy, role, shares) for policy, role, shares in found if not any(map(math.isnan, shares))]


EPISODE_COLUMNS = (
    *("episode_return_mean", "episode_len_mean", "success_rate", "invalid_action_rate", "illegal_action_rate"),
    *("format_error_rate", "turns_per_episode", "tokens_per_turn", "truncated_rate", "generated_tokens_per_s"),
    "engine_busy_fraction",
)
OVER_LEVELS = ("levels", "success_low", "success_high")
"""Of evaluations: different levels played, and the 95 % interval of ``success_rate`` over them."""
EVALUATION_COLUMNS = (*EPISODE_COLUMNS[:9], *OVER_LEVELS)
"""Columns of evaluations, in every result of a run that evaluates."""
EPISODE_NAMES = (
    *EPISODE_COLUMNS,
    *(*OUTCOME_RATES, JUDGED, OUTCOMES),
    *("episode_return_min", "episode_return_max", "response_tokens", "prompt_tokens", "num_episodes", "games"),
    *("agent_episode_returns_mean", "module_episode_returns_mean", "role_returns_mean", "stop_reason", "dropped"),
    *("own_return_mean", "seat_returns_mean"),
    *OVER_LEVELS,
    *("num_env_steps_sampled", "num_env_steps_sampled_lifetime", "num_episodes_lifetime", MEASURES),
    "prompt_tokens_computed_fraction",
)
"""First parts of what this package reports below ``env_runners``, whatever estimates advantages."""

LEARNER_COLUMNS: tuple[str, ...] = (
    *("policy_loss", "vf_loss", "vf_explained_var", "mean_kl_loss", "curr_kl_coeff", "entropy", "approx_kl"),
    *("clip_fraction", "logprob_diff", "first_minibatch_ratio_error", "staleness", "padding_waste", "grad_norm"),
    *("nan_steps", "zero_grad_updates", "trained_tokens", "trained_tokens_per_s"),
)
OBSERVATION_NAMES = ("observation_loss", "observation_tokens")
"""Where what games say is learned: its mean cross-entropy in nats, and the number of tokens that this is of."""
LEARNER_NAMES = (
    *LEARNER_COLUMNS,
    *("total_loss", "ratio", "dual_clip_fraction", "value_clip_fraction", "return_mean"),
    *(f"advantage_{moment}" for moment in ("mean", "std", "min", "max")),
    *("critic_fit_explained_var", "critic_fit_explained_var_held_out", "staleness_max"),
    *("update_s", "num_steps", "num_rows", "num_row_tokens", "num_computed_tokens", "truncated_sequences"),
    *("importance_weight", "importance_capped_fraction", "importance_masked_fraction", "logprob_diff_mean"),
    *("curr_entropy_coeff", "default_optimizer_learning_rate", "teacher_kl"),
    *("num_trainable_parameters", "num_non_trainable_parameters"),
    *OBSERVATION_NAMES,
)
"""What this package reports of a policy below ``learners`` in PPO's phase, whatever its options."""

CRITIC_NAMES = (
    *("vf_loss", "vf_explained_var", "value_clip_fraction"),
    *("critic_fit_explained_var", "critic_fit_explained_var_held_out"),
)
"""Metrics that are numbers only if the policy has a critic."""

PREFERENCE_NAMES = (
    *("reward_accuracy", "reward_margin", "chosen_reward", "rejected_reward", "chosen_logprob", "rejected_logprob"),
)
"""Beside losses of preferences: the share of pairs in which the chosen one has gained more on the reference, by how
much (times ``beta``), what both have gained, and both's log-probability per token.
"""

ACTION_VALUE_NAMES = ("q_loss", "cql_loss", "q_mean", "target_mean")
"""Beside losses of action values: of all heads together the squared error and the cross-entropy, the least value of
what was taken, and what it is to become. ILQL has also ``v_loss`` and ``v_mean``, of states.
"""

DATA_EPOCHS = "data_epochs"
"""Passes over the lists of levels that games deal from: of several lists the least."""

RESULT_HEADS = (
    *("training_iteration", "time_total_s", "time_this_iter_s", "done", "env_runners", "learners", "evaluation"),
    *("timers", "schedules", "data_selection", "async_rollouts", "fault_tolerance", "env_runner_group"),
    *("num_env_steps_sampled_lifetime", "num_agent_steps_sampled_lifetime", "num_env_steps_sampled"),
    *("num_training_step_calls_per_iteration", "iterations_since_restore", "time_since_restore", "counters"),
    *("info", "perf", "custom_metrics", "config"),
)
"""Heads of the names of numbers that RLlib reports; an algorithm's entry names its own."""
OF_TUNE = frozenset({"time_this_iter_s", "timestamp", "pid"})
"""Numbers at the top that Tune puts into every result."""

RLLIB_EVALUATION = (
    *("num_healthy_workers", "actor_manager_num_outstanding_async_reqs", "num_remote_worker_restarts"),
    "num_env_runners_dropped_lifetime",
)
"""Metrics of RLlib below ``evaluation`` that are not about episodes."""
LEAGUE_NAMES = ("size", "mean_win_rate", "win_rate", "rating", "swaps", "prepare_s")
"""First parts of what is reported below ``league``."""

ASYNC_ROLLOUT_NAMES = ("idle_engine_s", "idle_learner_s", "played_again")
"""What is reported below ``async_rollouts``: seconds without a game before the iteration was played, seconds that
the driver waited for it, and whether its schedules had gone on so that it was played anew.
"""

TIMER_COLUMNS = (ROLLOUT_TIMER, UPDATE_TIMER, WEIGHT_SYNC_TIMER, EXPERT_TIMER)


def with_columns(
    result: dict[str, Any],
    *,
    top: tuple[str, ...],
    modules: Iterable[str],
    learner: tuple[str, ...],
    evaluates: bool,
    measured: Iterable[tuple[str, ...]] = (),
    counts: Mapping[tuple[str, ...], tuple[str, ...]] | None = None,
) -> dict[str, Any]:
    """Add what ``result`` lacks as NaN: Tune's CSV file has only the columns of the first result.

    Args:
        top: The algorithm's own numbers at the top.
        modules: Trained policies.
        learner: The algorithm's numbers of each.
        measured: Paths below ``evaluation`` of what is measured beside episodes.
        counts: Path -> names there of what is counted.
    """
    wanted: dict[tuple[str, ...], tuple[str, ...]] = {
        (): top,
        ("env_runners",): EPISODE_COLUMNS,
        ("timers",): TIMER_COLUMNS,
    }
    wanted |= {("learners", module): learner for module in modules}
    if evaluates:
        wanted[("evaluation", "env_runners")] = EVALUATION_COLUMNS
    for place, names in (counts or {}).items():
        wanted[place] = (*wanted.get(place, ()), *names)
    for *above, name in measured:
        path = ("evaluation", *above)
        wanted[path] = (*wanted.get(path, ()), name)
    for path, names in wanted.items():
        numbers = result
        for part in path:
            numbers = numbers.setdefault(part, {})
        for name in names:
            numbers.setdefault(name, float("nan"))
    return result


def unknown_metric(name: str, result: Mapping[str, Any]) -> str | None:
    """What is wrong with the name of a metric that ``result`` does not have and no later one will have, else ``None``.

    Results have every column from the first one on, as NaN where nothing was measured (:func:`with_columns`).
    """
    head, _, rest = name.partition("/")
    first = rest.removeprefix("env_runners/").partition("/")[0]
    if head in ("env_runners", "evaluation", "league") and first in (*EPISODE_NAMES, *LEAGUE_NAMES):
        return None  # Games, members and reasons come and go.
    known = ["/".join(path) for path, _ in flatten({key: part for key, part in result.items() if key != "config"})]
    if name in known or (head == "evaluation" and not any(other.startswith("evaluation/") for other in known)):
        return None
    return f"no result has {name!r}; {did_you_mean(name, known, 'e.g. env_runners/success_rate')}"


def flatten(numbers: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], float]]:
    """``(("a", "b"), value)`` pairs of nested numbers."""
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*prefix, str(key)))
        else:
            yield (*prefix, str(key)), value
