"""Converts played episodes to RLlib's ``MultiAgentEpisode`` and to summaries for metrics."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_lmgame.envs.contract.verdicts import Outcome, outcomes
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.measures.statistics import Rate, mean_pass_at_k, rate_over_levels
from rllib_lmgame.rollouts.plans import AgentAssignment
from rllib_lmgame.rollouts.play import PlayedEpisode
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, EpisodeSummary, SeatSummary, Trajectory, store
from rllib_lmgame.rollouts.seats import LanguageModelSeat, Seat
from rllib_lmgame.telemetry.metrics import JUDGED, MEASURES, OUTCOME_RATES, OUTCOMES

if TYPE_CHECKING:
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer


_DIGEST = "[0-9a-f]{16}"
"""What :func:`~rllib_lmgame.envs.contract.splits.level_digest` gives."""


def trajectory_of_seat(played: PlayedEpisode, seat: LanguageModelSeat) -> Trajectory:
    """The trajectory of one language-model seat; it has at least one turn."""
    final = seat.final_prompt
    return Trajectory(
        turns=seat.turns,
        terminated=final is None,
        role=seat.role,
        agent_id=seat.agent_id,
        module_id=seat.module_id,
        episode_id=played.plan.episode_id,
        group=played.plan.group,
        game=played.called,
        final_prompt_ids=None if final is None else final.delta,
        final_new_row=final is not None and final.new_row,
        temperature=seat.temperature,
        reward_scale=None if played.game is None else played.game.reward_scale,
        logged=played.logged,
        final_observed=None if final is None else final.observed,
    )


def summarize(played: PlayedEpisode) -> EpisodeSummary:
    verdicts = {agent: _verdict(played.infos.get(agent, {})) for agent in played.seats}
    against_others = not played.cooperative and len(played.seats) > 1
    ranking = _ranking(played, verdicts) if against_others else {}
    assignments = played.plan.assignments
    seats = [
        _summarize_seat(seat, played.infos.get(agent, {}), ranking.get(agent), assignments[agent])
        for agent, seat in played.seats.items()
    ]
    return EpisodeSummary(
        episode_id=played.plan.episode_id,
        index=played.plan.index,
        game=played.plan.game,
        game_id=played.called,
        seed=played.plan.seed,
        terminated=played.terminated,
        stop_reason=played.stop_reason.value,
        steps=len(played.steps),
        success=_success(seats, against_others=against_others),
        level=level_in((played.infos, *(step.infos for step in played.steps))),
        seats=seats,
        category=_at_the_end(played, "category", str),
        num_levels=max(0, _at_the_end(played, "num_levels", int) or 0),
    )


def _at_the_end(played: PlayedEpisode, key: str, kind: type) -> Any:
    """What the game said of itself at its end, if it is of this kind and says something."""
    said = (info.get(key) for info in played.infos.values())
    return next((value for value in said if type(value) is kind and value), None)


def _verdict(info: dict[str, Any]) -> bool | None:
    success = info.get("success")
    return None if success is None else bool(success)


def _ranking(played: PlayedEpisode, verdicts: dict[str, bool | None]) -> dict[str, Outcome | None]:
    if played.infos.keys() >= played.seats.keys():
        return dict(outcomes(verdicts, _results(played)))
    # A game that was broken off: results so far rank nobody. Who ran out of tokens has lost.
    known = {True: Outcome.WIN, False: Outcome.LOSS, None: None}
    no_tokens = (StopReason.CONTEXT_OVERFLOW, StopReason.TOKEN_BUDGET)
    ran_out = {agent for agent, end in played.ends.items() if end.stop_reason in no_tokens}
    return {agent: Outcome.LOSS if agent in ran_out else known[verdicts[agent]] for agent in played.seats}


def _results(played: PlayedEpisode) -> dict[str, float]:
    given = {agent: info.get("result") for agent, info in played.infos.items()}
    named = {agent: result for agent, result in given.items() if isinstance(result, int | float)}
    if named.keys() >= played.seats.keys():
        return {agent: float(named[agent]) for agent in played.seats}
    return {agent: float(seat.numbers.episode_return) for agent, seat in played.seats.items()}


def _success(seats: list[SeatSummary], *, against_others: bool) -> float | None:
    """Share of the trained seats that reached the goal, or won; a truncated seat did not reach it."""
    own = [seat for seat in seats if seat.trained] or seats
    if against_others and len(own) == len(seats):
        return None
    return sum(seat.outcome == Outcome.WIN if against_others else bool(seat.success) for seat in own) / len(own)


def level_in(steps: Iterable[Mapping[str, Mapping[str, Any]]]) -> str | None:
    """The level's digest, if the game gives one in ``info["level"]`` after a step."""
    named = (info.get("level") for infos in steps for info in infos.values())
    return next((level for level in named if isinstance(level, str) and re.fullmatch(_DIGEST, level)), None)


def success_by_seed(summaries: Iterable[EpisodeSummary]) -> dict[str, float]:
    """Success per seed, named ``<game> <seed> <level>`` or ``<game> <seed>``, of episodes with a verdict."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        if summary.success is not None:
            name = f"{summary.game_id} {summary.seed}" + (f" {summary.level}" if summary.level else "")
            found.setdefault(name, []).append(summary.success)
    return {name: sum(results) / len(results) for name, results in found.items()}


def seed_and_level(name: str) -> tuple[str, str]:
    """From a name of :func:`success_by_seed`: game and seed, which pair results, and game and level (or seed)."""
    found = re.fullmatch(rf"((.*) -?\d+) ({_DIGEST})", name)
    return (found[1], f"{found[2]} {found[3]}") if found else (name, name)


def level_name(summary: EpisodeSummary) -> str:
    return f"{summary.game_id} {summary.level or summary.seed}"


def over_levels(summaries: Iterable[EpisodeSummary]) -> tuple[int | None, Rate | None]:
    """Number of different levels, if they have digests, and the success rate over levels, if there is one."""
    summaries = list(summaries)
    named = {level_name(summary) for summary in summaries if summary.level is not None}
    judged = [(summary.success, level_name(summary)) for summary in summaries if summary.success is not None]
    rate = rate_over_levels([result for result, _ in judged], [level for _, level in judged]) if judged else None
    return len(named) or None, rate


OVER_SAMPLES = ("pass_at_k", "best_return_mean")
"""Names of the numbers of :func:`over_samples`."""


def over_samples(summaries: Iterable[EpisodeSummary], samples: int) -> dict[str, float]:
    """Share of levels with a success among ``samples``, and mean over levels of the best own return; empty for one
    sample.
    """
    played: dict[tuple[int, int], list[EpisodeSummary]] = {}
    for summary in summaries if samples > 1 else ():
        played.setdefault((summary.game, summary.seed), []).append(summary)
    if not played:
        return {}
    judged = [[one.success == 1 for one in own if one.success is not None] for own in played.values()]
    passed = mean_pass_at_k(judged, samples)
    best = [max(map(own_return, own)) for own in played.values()]
    return dict(zip(OVER_SAMPLES, (math.nan if passed is None else passed, fmean(best)), strict=True))


def own_return(summary: EpisodeSummary) -> float:
    """Mean return of the trained seats where others have seats; otherwise the sum over all seats."""
    own = [seat.episode_return for seat in summary.seats if seat.trained]
    return fmean(own) if own and len(own) < len(summary.seats) else sum(seat.episode_return for seat in summary.seats)


def _summarize_seat(
    seat: Seat, info: dict[str, Any], outcome: Outcome | None, assignment: AgentAssignment
) -> SeatSummary:
    turns, numbers = seat.turns if isinstance(seat, LanguageModelSeat) else [], seat.numbers
    return replace(
        numbers,
        response_tokens=numbers.response_tokens + sum(len(turn.response_ids) for turn in turns),
        prompt_tokens=numbers.prompt_tokens + sum(len(turn.prompt_ids) for turn in turns),
        rows=sum(turn.new_row for turn in turns),
        success=_verdict(info),
        min_policy_version=min((turn.policy_version for turn in turns), default=0),
        outcome=None if outcome is None else outcome.value,
        trained=assignment.trained,
        member=assignment.member,
        measures=info.get("measures") or {},
    )


def to_multi_agent_episode(played: PlayedEpisode, episode: MultiAgentEpisode | None = None) -> MultiAgentEpisode:
    """RLlib's episode of text, with token records in ``extra_model_outputs`` and the assignments in ``custom_data``.

    A reward earned during another player's move belongs to the player's own last turn, as the learner needs it. Players
    that never acted have no episode. It is built directly, which is several times as fast as step by step. If
    ``episode`` is given, its contents are replaced; its custom data stay.
    """
    made = new_episode(played.plan.episode_id, {agent: seat.module_id for agent, seat in played.seats.items()})
    if episode is None:
        episode = made
    else:
        for name in ("agent_episodes", "env_t_to_agent_t", *(name for name in made.__slots__ if "_hanging" in name)):
            setattr(episode, name, getattr(made, name))
    episode.env_t = len(played.steps)
    for agent, seat in played.seats.items():
        moves = [t for t, step in enumerate(played.steps) if agent in step.actions]
        if moves:
            episode.agent_episodes[agent] = _part_of_seat(episode, played, seat, moves)
            episode.env_t_to_agent_t[agent] = _time_map(episode, moves, played.ends[agent].step)
    episode.is_terminated, episode.is_truncated = played.terminated, not played.terminated
    episode.custom_data[CUSTOM_DATA_KEY] = dict(played.plan.assignments)
    return episode


def episode_of_texts(
    trajectories: Mapping[str, Trajectory], observations: Sequence[str], actions: Sequence[str], episode_id: str
) -> MultiAgentEpisode:
    """RLlib's episode of a conversation: all players have the same texts.

    ``observations`` has one text more than ``actions``, the last state.
    """
    episode = new_episode(episode_id, {agent: trajectory.module_id for agent, trajectory in trajectories.items()})
    episode.env_t = steps = len(actions)
    for agent, trajectory in trajectories.items():
        single = episode.agent_episodes[agent] = _part(
            episode,
            agent,
            trajectory.terminated,
            observations=[*observations],
            actions=[*actions],
            rewards=[turn.reward for turn in trajectory.turns],
            infos=[{} for _ in observations],
        )
        store(trajectory, single)
        episode.env_t_to_agent_t[agent] = _time_map(episode, [*range(steps)], steps)
    episode.is_terminated = all(trajectory.terminated for trajectory in trajectories.values())
    episode.is_truncated = not episode.is_terminated
    return episode


def new_episode(episode_id: str, modules: dict[str, str]) -> MultiAgentEpisode:
    """RLlib's episode without its parts; ``modules``: agent id -> module."""
    from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

    return MultiAgentEpisode(id_=episode_id, agent_module_ids=modules, agent_to_module_mapping_fn=module_of_agent)


def _part(episode: MultiAgentEpisode, agent: str, terminated: bool, **columns: Any) -> SingleAgentEpisode:
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    return SingleAgentEpisode(
        **columns,
        terminated=terminated,
        truncated=not terminated,
        agent_id=agent,
        module_id=module_of_agent(agent, episode),
        multi_agent_episode_id=episode.id_,
        len_lookback_buffer=0,
    )


def _part_of_seat(
    episode: MultiAgentEpisode, played: PlayedEpisode, seat: Seat, moves: list[int]
) -> SingleAgentEpisode:
    agent, end = seat.agent_id, played.ends[seat.agent_id]
    turns = seat.turns if isinstance(seat, LanguageModelSeat) else None
    single = _part(
        episode,
        agent,
        end.terminated,
        observations=[*(played.steps[t].observations[agent] for t in moves), played.final_observations[agent]],
        actions=[played.steps[t].actions[agent] for t in moves],
        rewards=_rewards(played, agent, moves) if turns is None else [turn.reward for turn in turns],
        infos=[played.steps[t - 1].infos.get(agent, {}) if t else {} for t in (*moves, end.step)],
    )
    if isinstance(seat, LanguageModelSeat):
        store(trajectory_of_seat(played, seat), single)
    return single


def _rewards(played: PlayedEpisode, agent: str, moves: list[int]) -> list[float]:
    ends = [*moves[1:], len(played.steps)]
    return [
        sum(step.rewards.get(agent, 0.0) for step in played.steps[t:end]) for t, end in zip(moves, ends, strict=True)
    ]


def _time_map(episode: MultiAgentEpisode, moves: list[int], end: int) -> InfiniteLookbackBuffer:
    """Environment step -> the player's own step, for steps in which it saw something; its last one is ``end``."""
    from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

    entries: list[Any] = [episode.SKIP_ENV_TS_TAG] * (episode.env_t + 1)
    for own, t in enumerate([*moves, end]):
        entries[t] = own
    return InfiniteLookbackBuffer(entries)


def module_of_agent(agent_id: str, episode: MultiAgentEpisode, **kwargs: Any) -> str:
    """The module of an agent, which is known before the episode begins."""
    return str(episode._agent_to_module_mapping[agent_id])


def episode_metrics(episodes: Sequence[EpisodeSummary], failures: Iterable[str] = ()) -> dict[str, Any]:
    """Metrics of finished episodes (returns unscaled); ``failures`` are the reasons of dropped ones.

    Returns:
        Nested numbers, without those that are unknown:

        * RLlib's ``episode_return_{mean,min,max}``, ``episode_len_mean`` (turns of all players), ``num_episodes``,
          ``agent_episode_returns_mean/<agent>`` and ``module_episode_returns_mean/<module>``;
        * ``success_rate`` of the trained policies, not in self-play, and of how many: ``judged_episodes``;
        * ``{win,draw,loss}_rate/<policy>/<role>`` in games against others, of the present policy, and ``outcomes/...``;
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
        result |= {"success_rate": sum(verdicts) / len(verdicts), JUDGED: len(verdicts)}
    measures = _measures(episodes)
    return result | _outcome_rates(seats) | ({MEASURES: measures} if measures else {})


def _outcome_rates(seats: Iterable[SeatSummary]) -> dict[str, dict[str, dict[str, float]]]:
    """``win_rate``, ``draw_rate``, ``loss_rate``, ``outcomes``: policy -> role -> share; empty without opponents."""
    ended: dict[tuple[str, str], list[str]] = {}
    for seat in seats:
        if seat.outcome is not None and seat.member is None:
            ended.setdefault((seat.module_id, seat.role), []).append(seat.outcome)
    rates: dict[str, dict[str, dict[str, float]]] = {name: {} for name in (*OUTCOME_RATES, OUTCOMES) if ended}
    for (policy, role), found in sorted(ended.items()):
        rates[OUTCOMES].setdefault(policy, {})[role] = len(found)
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


def unread_replies(episodes: Iterable[EpisodeSummary]) -> list[str]:
    """Up to three different replies without a readable answer."""
    found = (seat.unread for episode in episodes for seat in episode.seats if seat.unread is not None)
    return list(itertools.islice(dict.fromkeys(found), 3))


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
