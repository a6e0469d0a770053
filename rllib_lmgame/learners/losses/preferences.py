"""Losses of preferences: the class is the loss, its fields are its options."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rllib_lmgame.base.group import Group, option, tag

if TYPE_CHECKING:
    from torch import Tensor


class Sides(NamedTuple):
    """``N`` trajectories: sums of log-probabilities of policy and reference, and tokens, all float64 ``[N]``."""

    policy: Tensor
    reference: Tensor
    tokens: Tensor

    @property
    def gain(self) -> Tensor:
        return self.policy - self.reference

    def at(self, index: Tensor) -> Sides:
        return Sides(*(each[index] for each in self))


class PreferenceLoss(Group):
    """Below ``s`` is the sum over tokens of ``log pi - log pi_ref``, and ``d = s_w - s_l``."""

    type: str = tag("", "Its name, or `package.module:Class`.")

    by_token: ClassVar[bool] = False
    """Whether means over tokens are compared, and not sums."""

    asks_reference: ClassVar[bool] = True
    """Whether trajectories are compared with what the reference gives them."""

    def __call__(self, beta: float, chosen: Sides, rejected: Sides, /) -> Tensor:
        """The loss of each pair, float64 ``[pairs]``."""
        raise NotImplementedError


class _WithReference(PreferenceLoss):
    reference_free: bool = option(False, "Compare with nothing instead of the reference.")

    @property
    def asks_reference(self) -> bool:
        return not self.reference_free


class Sigmoid(_WithReference):
    """``-(1 - e) log sigmoid(beta d) - e log sigmoid(-beta d)`` (DPO, 2305.18290; ``e`` as in cDPO)."""

    type: str = tag("sigmoid", "Its name.")
    label_smoothing: float = option(0.0, "Share of pairs that are taken to be the wrong way round.", ge=0, lt=0.5)

    def __call__(self, beta: float, chosen: Sides, rejected: Sides, /) -> Tensor:
        from torch.nn.functional import logsigmoid

        logits, wrong = beta * (chosen.gain - rejected.gain), self.label_smoothing
        return -(1 - wrong) * logsigmoid(logits) - wrong * logsigmoid(-logits)


class IPO(_WithReference):
    """``(s_w / |w| - s_l / |l| - 1 / (2 beta))^2`` (2310.12036; with means over tokens, as in TRL)."""

    type: str = tag("ipo", "Its name.")
    by_token: ClassVar[bool] = True

    def __call__(self, beta: float, chosen: Sides, rejected: Sides, /) -> Tensor:
        return (chosen.gain / chosen.tokens - rejected.gain / rejected.tokens - 1 / (2 * beta)) ** 2


class SimPO(PreferenceLoss):
    """``-log sigmoid(beta (log pi_w / |w| - log pi_l / |l|) - gamma)``, without a reference (2405.14734)."""

    type: str = tag("simpo", "Its name.")
    margin: float = option(0.5, "Distance `gamma` that the chosen one is to have, in what `beta` makes of it.", ge=0)
    by_token: ClassVar[bool] = True
    asks_reference: ClassVar[bool] = False

    def __call__(self, beta: float, chosen: Sides, rejected: Sides, /) -> Tensor:
        from torch.nn.functional import logsigmoid

        means = chosen.policy / chosen.tokens - rejected.policy / rejected.tokens
        return -logsigmoid(beta * means - self.margin)
