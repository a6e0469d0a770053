"""Metrics of played episodes, under RLlib's names where it has one."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rllib_lmgame.rollouts.records import EpisodeSummary, SeatSummary
from rllib_lmgame.telemetry.metrics import MEASURES, OUTCOME_RATES


def episode_metrics(episodes: Sequence[EpisodeSummary], failures: Iterable[str] = ()) -> dict[str, Any]:
    """Metrics of finished episodes (returns unscaled); ``failures`` are the reasons of dropped ones.

    Returns:
        Nested numbers, without those that are unknown:

        * RLlib's ``episode_return_{mean,min,max}``, ``episode_len_mean`` (turns of all players), ``num_episodes``,
          ``agent_episode_returns_mean/<agent>`` and ``module_episode_returns_mean/<module>``;
        * ``success_rate`` of the trained policies, not in self-play;
        * ``{win,draw,loss}_rate/<policy>/<role>`` in games against others, of the present policy;
        * ``invalid_action_rate`` per action, ``illegal_action_rate`` of actions that could be read,
          ``format_error_rate`` per reply of a language model;
        * ``turns_per_episode`` per player, ``tokens_per_turn``, ``truncated_rate``, ``role_returns_mean/<role>``;
        * ``stop_reason/<reason>`` and ``dropped/<reason>``;
        * ``measures/<name>`` of games: the mean over an episode's trained seats (all if none is), then over episodes;
        * ``games/<id>/...``, the same for each game, if there are several.
    """
    result = _core(episodes)
    if dropped := dict(Counter(failures)):
        result["dropped"] = dropped
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


def _core(episodes: Sequence[EpisodeSummary]) -> dict[str, Any]:
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
        "stop_reason": dict(Counter(episode.stop_reason for episode in episodes)),
    }
    if verdicts:
        result["success_rate"] = sum(verdicts) / len(verdicts)
    measures = _measures(episodes)
    return result | _outcome_rates(seats) | ({MEASURES: measures} if measures else {})


def _outcome_rates(seats: Iterable[SeatSummary]) -> dict[str, dict[str, dict[str, float]]]:
    """``win_rate``, ``draw_rate``, ``loss_rate``: policy -> role -> share; empty without opponents."""
    ended: dict[tuple[str, str], list[str]] = {}
    for seat in seats:
        if seat.outcome is not None and seat.member is None:
            ended.setdefault((seat.module_id, seat.role), []).append(seat.outcome)
    rates: dict[str, dict[str, dict[str, float]]] = {name: {} for name in OUTCOME_RATES} if ended else {}
    for (policy, role), found in sorted(ended.items()):
        for name, outcome in OUTCOME_RATES.items():
            rates[name].setdefault(policy, {})[role] = found.count(outcome) / len(found)
    return rates


def _measures(episodes: Iterable[EpisodeSummary]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for episode in episodes:
        seats = [seat for seat in episode.seats if seat.trained] or episode.seats
        for name in sorted({name for seat in seats for name in seat.measures}):
            found.setdefault(name, []).append(
                float(np.mean([seat.measures[name] for seat in seats if name in seat.measures]))
            )
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


def unread_replies(episodes: Iterable[EpisodeSummary], most: int = 3) -> list[str]:
    """Up to ``most`` different replies without a readable answer."""
    found = (seat.unread for episode in episodes for seat in episode.seats if seat.unread is not None)
    return list(itertools.islice(dict.fromkeys(found), most))


def returns_by_seat(episodes: Sequence[EpisodeSummary]) -> dict[str, Any]:
    """Returns by policy; their sum over all seats says little (0 in a zero-sum game).

    Returns: ``seat_returns_mean/<policy>/<role>`` of the present policy, and in games with others ``own_return_mean``,
        over an episode's trained seats, then over episodes.
    """
    own = [found for episode in episodes if (found := [seat for seat in episode.seats if seat.trained])]
    result: dict[str, Any] = {}
    if own and any(not seat.trained for episode in episodes for seat in episode.seats):
        result["own_return_mean"] = float(np.mean([np.mean([seat.episode_return for seat in found]) for found in own]))
    earned: dict[str, list[SeatSummary]] = {}
    for episode in episodes:
        for seat in episode.seats:
            if seat.member is None:
                earned.setdefault(seat.module_id, []).append(seat)
    result["seat_returns_mean"] = {policy: _means(earned[policy], "role") for policy in sorted(earned)}
    return result


def _means(seats: Iterable[SeatSummary], key: str) -> dict[str, float]:
    groups: Mapping[str, list[float]] = defaultdict(list)
    for seat in seats:
        groups[getattr(seat, key)].append(seat.episode_return)
    return {name: float(np.mean(values)) for name, values in groups.items()}
