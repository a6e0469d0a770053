"""Options of the rollouts: how many games, how they are seeded, what is logged."""

from __future__ import annotations

from typing import Literal

from rllib_lmgame.base.group import Group, Scheduled, option
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.base.threads import AUTO

EPISODES_OF_SAMPLE = 16
"""Of an iteration, that `episode_log: sample` writes, over all env runners."""


class TextRolloutOptions(Group):
    """The ``text_rollouts`` section."""

    episodes_per_iteration: Scheduled[int] = option(
        64, "Complete episodes played per training iteration, over all env runners.", ge=1, le=1e6
    )
    group_size: int = option(
        1,
        "Games started from the same seed (same level): a group, which an advantage estimator may compare.",
        ge=1,
        le=100_000,
    )
    episode_timeout_s: float = option(
        1800.0, "Wall-clock limit of one episode; a slower one is dropped and counted.", gt=0
    )
    env_step_timeout_s: float = option(CALL_LIMIT_S, "Wall-clock limit of one `reset` or `step` of a game.", gt=0)
    format_penalty: Scheduled[float] = option(
        0.0,
        "Reward of a reply without a readable answer, beside the game's own penalty for an invalid action.",
        le=0,
    )
    bootstrap_turn_limit: bool = option(
        False,
        "Whether an episode cut by the turn limit bootstraps from its last state's value. Off: the limit is part of "
        "the task; with `gamma: 1` a bootstrap would make stalling as good as winning.",
    )
    bootstrap_token_budget: bool = option(
        False,
        "Whether a player that has spent `language_model.max_tokens_per_episode` bootstraps from the value of its "
        "last state. Off: the budget is part of the task, and spending it is the end.",
    )
    constrained_decoding: bool = option(
        False,
        "Constrain replies to the legal moves, where the game lists some. Log-probabilities, entropy and KL are among "
        "the allowed tokens; tokens without an alternative are not trained on.",
    )
    reward_scale: Scheduled[float] = option(1.0, "Factor on rewards in training (not in metrics).", gt=0, le=1e6)
    deterministic: bool | Literal["auto"] = option(
        AUTO,
        "Per-request seeds, a fixed order and fixed numbers of threads, so that a run, also a resumed one, repeats bit "
        "for bit on machines of one kind. `auto`: where all is on CPUs, without `data_selection.oversample` and "
        "`async_rollouts`.",
    )
    episode_log: str = option(
        "sample",
        "Episodes written to `episodes/*.jsonl` in the trial's directory, to be looked at: about 16 of each iteration, "
        "the best and the worst, or `all`.",
        choices=("sample", "all", "off"),
    )
    max_failed_rounds: int = option(
        3, "Rounds in a row without a single finished episode before the run ends with an error.", ge=1
    )
