"""Numbers about played episodes, under the names RLlib uses where it has one."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class Phase(NamedTuple):
    """A phase of an iteration: what is said while it goes on, and its name in a line of progress."""

    doing: str
    name: str


PHASES = {
    "expert_s": Phase("playing the expert's episodes", "expert"),
    "rollout_s": Phase("playing", "play"),
    "vine_s": Phase("playing on from states", "values"),
    "update_s": Phase("updating", "update"),
    "weight_sync_s": Phase("sending the weights to the engines", "sync"),
}
EXPERT_TIMER, ROLLOUT_TIMER, VINE_TIMER, UPDATE_TIMER, WEIGHT_SYNC_TIMER = PHASES

MOSTLY = 0.5
"""Share of unreadable replies above which that is said, and some are shown."""

OUTCOME_RATES = {"win_rate": "win", "draw_rate": "draw", "loss_rate": "loss"}
"""``<name>/<policy>/<role>``: share of the episodes that ended so for a seat of that role."""


RATES = frozenset(
    (
        *(*OUTCOME_RATES, "success_rate", "truncated_rate"),
        *("invalid_action_rate", "illegal_action_rate", "format_error_rate"),
    )
)
"""Names of shares, between 0 and 1; names of games, policies and roles stand around them."""

MEASURES = "measures"
"""``measures/<name>``: what a game reports of itself at the end of an episode (``info["measures"]``)."""


class SeatNumbers(Protocol):
    agent_id: str
    role: str
    module_id: str
    episode_return: float
    turns: int
    invalid_actions: int
    illegal_actions: int
    format_errors: int
    unread: str | None
    response_tokens: int
    prompt_tokens: int
    rows: int
    outcome: str | None
    trained: bool
    member: str | None
    measures: dict[str, float]


class EpisodeNumbers(Protocol):
    """What is read of one episode."""

    game_id: str
    terminated: bool
    stop_reason: str
    steps: int
    success: float | None

    @property
    def seats(self) -> Sequence[SeatNumbers]:
        """One entry per player."""


def episode_metrics(episodes: Sequence[EpisodeNumbers], failures: Iterable[str] = ()) -> dict[str, Any]:
    """Metrics of finished episodes (returns unscaled); ``failures`` are the reasons of dropped ones.

    Returns:
        Nested numbers, as far as something is known:

        * RLlib's ``episode_return_{mean,min,max}``, ``episode_len_mean`` (turns of all players), ``num_episodes``,
          ``agent_episode_returns_mean/<agent>`` and ``module_episode_returns_mean/<module>``;
        * ``success_rate`` of the trained policies, not where they play only against each other;
        * ``{win,draw,loss}_rate/<policy>/<role>`` in games against others, of the present policy;
        * ``invalid_action_rate`` per action, ``illegal_action_rate`` of those that were read, ``format_error_rate`` per
          reply of a language model;
        * ``turns_per_episode`` per player, ``tokens_per_turn``, ``truncated_rate``, ``role_returns_mean/<role>``;
        * ``stop_reason/<reason>`` and ``dropped/<reason>``;
        * ``measures/<name>``, from games: the mean over an episode's trained seats (all if none is), then over
          episodes;
        * ``games/<id>/...``, the same of each game, if there are several.
    """
    result = _core(episodes)
    for reason in failures:
        dropped = result.setdefault("dropped", {})
        dropped[reason] = dropped.get(reason, 0) + 1
    games = sorted({episode.game_id for episode in episodes})
    if len(games) > 1:
        chosen = (
            *("success_rate", *OUTCOME_RATES, MEASURES),
            *("episode_return_mean", "num_episodes", "invalid_action_rate"),
        )
        for game in games:
            numbers = _core([episode for episode in episodes if episode.game_id == game])
            result.setdefault("games", {})[game.replace("/", "_")] = {
                key: numbers[key] for key in chosen if key in numbers
            }
    return result


def _core(episodes: Sequence[EpisodeNumbers]) -> dict[str, Any]:
    result: dict[str, Any] = {"num_episodes": len(episodes)}
    if not episodes:
        return result
    returns = np.array([sum(seat.episode_return for seat in episode.seats) for episode in episodes])
    seats = [seat for episode in episodes for seat in episode.seats]
    model_seats = [seat for seat in seats if seat.response_tokens]
    actions = max(1, sum(seat.turns for seat in seats))
    model_turns = max(1, sum(seat.turns for seat in model_seats))
    verdicts = [episode.success for episode in episodes if episode.success is not None]
    result |= {
        "episode_return_mean": float(returns.mean()),
        "episode_return_min": float(returns.min()),
        "episode_return_max": float(returns.max()),
        "episode_len_mean": sum(seat.turns for seat in seats) / len(episodes),
        "invalid_action_rate": sum(seat.invalid_actions for seat in seats) / actions,
        "illegal_action_rate": sum(seat.illegal_actions for seat in seats) / actions,
        "format_error_rate": sum(seat.format_errors for seat in model_seats) / model_turns,
        "turns_per_episode": actions / len(seats),
        "tokens_per_turn": sum(seat.response_tokens for seat in model_seats) / model_turns,
        "truncated_rate": sum(not episode.terminated for episode in episodes) / len(episodes),
        "response_tokens": sum(seat.response_tokens for seat in seats),
        "prompt_tokens": sum(seat.prompt_tokens for seat in seats),
        "agent_episode_returns_mean": _means(seats, "agent_id"),
        "module_episode_returns_mean": _means((seat for seat in seats if seat.member is None), "module_id"),
        "role_returns_mean": _means(seats, "role"),
        "stop_reason": _counts(episodes),
    }
    if verdicts:
        result["success_rate"] = sum(verdicts) / len(verdicts)
    measures = _measures(episodes)
    return result | _outcome_rates(seats) | ({MEASURES: measures} if measures else {})


def win_draw_loss(numbers: Mapping[str, Any]) -> list[tuple[str, str, list[float]]]:
    """Policy, role and shares of games won, drawn and lost, out of :func:`episode_metrics`, where there are numbers."""
    rates = [numbers[name] for name in OUTCOME_RATES if isinstance(numbers.get(name), Mapping)]
    if len(rates) < len(OUTCOME_RATES):
        return []
    found = [
        (policy, role, [rate[policy][role] for rate in rates]) for policy, roles in rates[0].items() for role in roles
    ]
    return [(policy, role, shares) for policy, role, shares in found if not np.isnan(shares).any()]


def _outcome_rates(seats: Iterable[SeatNumbers]) -> dict[str, dict[str, dict[str, float]]]:
    """``win_rate``, ``draw_rate``, ``loss_rate``: policy -> role -> share; empty where nobody plays against another."""
    ended: dict[tuple[str, str], list[str]] = {}
    for seat in seats:
        if seat.outcome is not None and seat.member is None:
            ended.setdefault((seat.module_id, seat.role), []).append(seat.outcome)
    rates: dict[str, dict[str, dict[str, float]]] = {name: {} for name in OUTCOME_RATES} if ended else {}
    for (policy, role), found in sorted(ended.items()):
        for name, outcome in OUTCOME_RATES.items():
            rates[name].setdefault(policy, {})[role] = found.count(outcome) / len(found)
    return rates


def _measures(episodes: Iterable[EpisodeNumbers]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for episode in episodes:
        seats = [seat for seat in episode.seats if seat.trained] or episode.seats
        for name in sorted({name for seat in seats for name in seat.measures}):
            found.setdefault(name, []).append(
                float(np.mean([seat.measures[name] for seat in seats if name in seat.measures]))
            )
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def unread_replies(episodes: Iterable[EpisodeNumbers], most: int = 3) -> list[str]:
    """Up to ``most`` different replies without a readable answer."""
    found = (seat.unread for episode in episodes for seat in episode.seats if seat.unread is not None)
    return list(itertools.islice(dict.fromkeys(found), most))


def returns_by_seat(episodes: Sequence[EpisodeNumbers]) -> dict[str, Any]:
    """Returns by who earned them; their sum over all seats says little of a policy (0 in a zero-sum game).

    Returns: ``seat_returns_mean/<policy>/<role>`` of the present policy. Where others sit too also ``own_return_mean``,
    over an episode's trained seats, then over episodes.
    """
    own = [found for episode in episodes if (found := [seat for seat in episode.seats if seat.trained])]
    result: dict[str, Any] = {}
    if own and any(not seat.trained for episode in episodes for seat in episode.seats):
        result["own_return_mean"] = float(np.mean([np.mean([seat.episode_return for seat in found]) for found in own]))
    earned: dict[str, list[SeatNumbers]] = {}
    for episode in episodes:
        for seat in episode.seats:
            if seat.member is None:
                earned.setdefault(seat.module_id, []).append(seat)
    result["seat_returns_mean"] = {policy: _means(earned[policy], "role") for policy in sorted(earned)}
    return result


def _means(seats: Iterable[SeatNumbers], key: str) -> dict[str, float]:
    groups: Mapping[str, list[float]] = defaultdict(list)
    for seat in seats:
        groups[getattr(seat, key)].append(seat.episode_return)
    return {name: float(np.mean(values)) for name, values in groups.items()}


def _counts(episodes: Iterable[EpisodeNumbers]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for episode in episodes:
        counts[episode.stop_reason] = counts.get(episode.stop_reason, 0) + 1
    return counts


EPISODE_COLUMNS = (
    *("episode_return_mean", "episode_len_mean", "success_rate", "invalid_action_rate", "illegal_action_rate"),
    *("format_error_rate", "turns_per_episode", "tokens_per_turn", "truncated_rate", "generated_tokens_per_s"),
    "engine_busy_fraction",
)
OVER_LEVELS = ("levels", "success_low", "success_high")
"""Of evaluations: different levels played, and the 95 % interval of ``success_rate`` over them."""
EVALUATION_COLUMNS = (*EPISODE_COLUMNS[:9], *OVER_LEVELS)
"""Those of evaluations, in every result of a run that evaluates."""
EPISODE_NAMES = (
    *EPISODE_COLUMNS,
    *OUTCOME_RATES,
    *("episode_return_min", "episode_return_max", "response_tokens", "prompt_tokens", "num_episodes", "games"),
    *("agent_episode_returns_mean", "module_episode_returns_mean", "role_returns_mean", "stop_reason", "dropped"),
    *("own_return_mean", "seat_returns_mean"),
    *OVER_LEVELS,
    *("num_env_steps_sampled", "num_env_steps_sampled_lifetime", "num_episodes_lifetime", MEASURES),
    "prompt_tokens_computed_fraction",
)
"""First parts of what this package reports below ``env_runners``, whatever estimates advantages."""
VINE_NAMES = ("vine_states", "vine_rollouts", "vine_turns", "vine_tokens", "vine_failed", "vine_fallbacks")
"""What it reports there of rollouts from states."""

LEARNER_COLUMNS: tuple[str, ...] = (
    *("policy_loss", "vf_loss", "vf_explained_var", "mean_kl_loss", "curr_kl_coeff", "entropy", "approx_kl"),
    *("clip_fraction", "logprob_gap", "first_minibatch_ratio_error", "staleness", "padding_waste", "grad_norm"),
    *("nan_steps", "updates_without_gradient", "trained_tokens", "trained_tokens_per_s"),
)
LEARNER_NAMES = (
    *LEARNER_COLUMNS,
    *("total_loss", "ratio", "dual_clip_fraction", "value_clip_fraction", "return_mean"),
    *(f"advantage_{moment}" for moment in ("mean", "std", "min", "max")),
    *("critic_fit_explained_var", "critic_fit_explained_var_held_out", "staleness_max", "stale_fraction"),
    *("update_s", "num_steps", "num_rows", "num_row_tokens", "context_cuts"),
    *("importance_weight", "importance_capped_fraction", "importance_masked_fraction", "logprob_gap_mean"),
    *("curr_entropy_coeff", "default_optimizer_learning_rate"),
    *("num_trainable_parameters", "num_non_trainable_parameters"),
)
"""What this package reports of a policy below ``learners`` in PPO's phase, whatever its options."""

CRITIC_NAMES = (
    *("vf_loss", "vf_explained_var", "value_clip_fraction"),
    *("critic_fit_explained_var", "critic_fit_explained_var_held_out"),
)
"""Those that are numbers only where the policy has a critic."""

RESULT_HEADS = (
    *("training_iteration", "time_total_s", "time_this_iter_s", "done", "env_runners", "learners", "evaluation"),
    *("timers", "schedules", "data_selection", "fault_tolerance", "env_runner_group"),
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
"""What RLlib reports below ``evaluation`` beside what was evaluated."""
LEAGUE_NAMES = ("size", "mean_win_rate", "win_rate", "rating", "exploiters", "swaps", "prepare_s")
"""First parts of what is reported below ``league``."""

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


def flatten(numbers: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], float]]:
    """``(("a", "b"), value)`` pairs of nested numbers."""
    for key, value in numbers.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*prefix, str(key)))
        else:
            yield (*prefix, str(key)), value
