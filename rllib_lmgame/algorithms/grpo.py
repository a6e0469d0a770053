"""PPO's loop with defaults without a critic: replies are compared with those of other games on the same level."""

from __future__ import annotations

from ray.tune import register_trainable

from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.config import algorithms as registry


class LMGameGRPOConfig(LMGamePPOConfig):
    """Configuration of :class:`LMGameGRPO`: PPO's with other defaults.

    Eight games per level; all tokens of a trajectory have the advantage ``(r - mean) / (std + 1e-6)`` of the group
    (DeepSeekMath, arXiv 2402.03300). The loss is DAPO's (arXiv 2503.14476): mean over all tokens, ratios clipped at
    .8 and 1.28, no KL penalty, no entropy bonus. For the first paper's loss set ``policy_loss={"clip_high": 0.2}``,
    ``aggregation="sequence_mean"``, ``kl={"loss_estimator": "k3"}``; for Dr. GRPO ``advantage_estimator="dr_grpo"``.
    """

    entry = registry.GRPO

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.training(advantage_estimator="grpo")
        self.text_rollouts(group_size=8)
        self.entropy_coeff = 0.0


class LMGameGRPO(LMGamePPO):
    """Group-relative policy optimisation on text games: play groups, compare, update, push weights.

    All else is as in :class:`~rllib_lmgame.algorithms.ppo.LMGamePPO`.
    """

    config: LMGameGRPOConfig
    config_class = LMGameGRPOConfig


register_trainable(LMGameGRPO.__name__, LMGameGRPO)
