"""Returns against what the role usually gets in the game: no value function is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.group import Scheduled, option, tag
from rllib_lmgame.base.json_files import number_of
from rllib_lmgame.base.plugin import LazyModule
from rllib_lmgame.learners.advantages.inputs import AdvantageInputs, Estimator, rewards_to_go

if TYPE_CHECKING:
    import numpy as np
else:
    np = LazyModule("numpy")

Baselines = dict[tuple[str, str], float]
"""By game and role, in scaled rewards."""


class RoleBaseline(Estimator):
    """``G_t`` less a running mean of the returns of game and role: RAE of SPIRAL (arXiv 2506.24119), by batches.

    The mean is exponential, over batches, of scaled returns. It takes in a batch before it is used on it, and begins as
    the mean of the first one. So it is the same on all learners, and a role that is good for the player (moving first,
    say) makes no reply look good. SPIRAL takes in one episode after the other, and its ``G`` is the return of the whole
    episode: the same with a reward at the end alone and ``gamma: 1``.
    """

    type: str = tag("rae", "Its name.")
    baseline_decay: Scheduled[float] = option(
        0.95, "With every batch `baseline = decay * baseline + (1 - decay) * the batch's mean return`.", ge=0, le=1
    )

    needs_critic = False
    keeps_baseline = True

    def __call__(self, inputs: AdvantageInputs) -> np.ndarray:
        baselines = remembered_baselines(inputs)
        returns = rewards_to_go(inputs)
        names = [(game, role) for game in inputs.game_names for role in inputs.role_names]
        seats = inputs.games * len(inputs.role_names) + inputs.roles
        played = np.diff(inputs.offsets) > 0
        firsts = returns[inputs.offsets[:-1][played]]
        counts, sums = inputs.all_reduce(
            np.stack([np.bincount(seats[played], weights=w, minlength=len(names)) for w in (None, firsts)])
        )
        for place in np.flatnonzero(counts).tolist():
            name, mean = names[place], float(sums[place] / counts[place])
            before = baselines.get(name, mean)
            baselines[name] = self.baseline_decay * before + (1.0 - self.baseline_decay) * mean
        games = {*inputs.game_names, *(game for game, _ in baselines)}
        inputs.memory["baselines"] = [[*name, value] for name, value in sorted(baselines.items())]
        inputs.memory["reward_scales"] = {game: inputs.scale_in(game) for game in sorted(games)}
        of_names = np.array([baselines.get(name, 0.0) for name in names])
        return (returns - inputs.per_token(of_names[seats])).astype(np.float32)


def remembered_baselines(inputs: AdvantageInputs) -> Baselines:
    """What was kept, in rewards of the present scale: a run may go on with another one.

    Raises: CheckpointError: it is none.
    """
    baselines: Baselines = {}
    try:
        scales = inputs.memory.get("reward_scales", {})
        for game, role, value in inputs.memory.get("baselines", ()):
            number, now = number_of(value, f"the baseline of {role} in {game}"), inputs.scale_in(game)
            before = number_of(scales.get(game, now), f"reward_scales of {game}", above=0)
            baselines[str(game), str(role)] = number if before == now else number * now / before
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"what token_ppo.advantage_estimator remembers cannot be restored, the checkpoint is damaged: {error}"
        ) from error
    return baselines
