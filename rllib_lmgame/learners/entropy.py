"""The coefficient of the entropy bonus where it follows a target."""

from __future__ import annotations

import math


def next_coefficient(coefficient: float, entropy: float, target: float, rate: float) -> float:
    """The coefficient after an update in which the policy had this entropy; never below 0.

    ``max(0, c + rate (target - entropy))``: gradient ascent on the multiplier of the constraint that the entropy is at
    least the target (Haarnoja et al. 2018, 1812.05905, eq. 17 and 18). It rises while the policy is surer than it
    should be, and falls to 0 where it is not.

    Args:
        coefficient: The one that was in use.
        entropy: Mean over tokens, in nats; one that is not finite changes nothing.
        target: As ``entropy``.
        rate: Step.
    """
    return max(0.0, coefficient + rate * (target - entropy)) if math.isfinite(entropy) else coefficient
