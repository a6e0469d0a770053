"""Single parameters of a DeepSpeed engine, read and written as a whole.

ZeRO keeps two copies of a parameter: the one that passes read, which stage 3 spreads over learners, and the optimizer's
own in float32, which stages 1 to 3 do. A step writes the second over the first, so that both have to be changed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rllib_lmgame.learners.ranks import Ranks


def read_whole(parameter: torch.Tensor) -> torch.Tensor:
    """The optimizer's copy, complete, as a new float32 tensor. All learners must call."""
    from deepspeed.utils import safe_get_full_fp32_param

    found = safe_get_full_fp32_param(parameter)
    return (parameter if found is None else found).detach().float().clone()


@torch.no_grad()
def write_whole(values: Mapping[torch.Tensor, torch.Tensor], ranks: Ranks) -> None:
    """Set parameters to complete tensors, the same on all learners, who must all call."""
    import deepspeed
    from deepspeed.utils import safe_set_full_fp32_param, safe_set_local_fp32_param

    partitioned = [parameter for parameter in values if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(partitioned, modifier_rank=0, enabled=bool(partitioned)):
        for parameter, value in values.items():
            parameter.copy_(value)
    for parameter, value in values.items():
        if not hasattr(parameter, "ds_id"):
            safe_set_full_fp32_param(parameter, value.float())  # Does nothing where there is one copy only.
            continue
        part = int(getattr(parameter, "ds_tensor").numel())  # noqa: B009
        padded = torch.zeros(part * ranks.world, device=value.device)
        padded[: value.numel()] = value.flatten()
        safe_set_local_fp32_param(parameter, padded[part * ranks.rank : part * (ranks.rank + 1)])
