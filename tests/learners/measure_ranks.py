"""Learners over gloo, without Ray: what each holds while it loads, updates, pushes, exports and saves.

    python tests/learners/measure_ranks.py '[{"world": 2, "model": DIRECTORY, "out": DIRECTORY, "section": {},
        "training": {}, "options": {}, "updates": 2}]'

Prints a list of what each learner counted for each case; the first learner writes its weights after each update to
``out``. Learners are forks of this process, which has imported everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "e2e")]

import numpy as np
from learner_weights import set_adam_eps
from learning import one_prompt_each

from rllib_lmgame.inference.weights import unpack_state
from rllib_lmgame.learners import learner as learner_module
from rllib_lmgame.learners.data.sharding import WholeEpisodes
from rllib_lmgame.learners.engines import deepspeed_engine
from rllib_lmgame.learners.engines.torch_engine import save_tensors
from rllib_lmgame.learners.options import WeightUse

EPS = 1e-3


class Meter(TorchDispatchMode):
    """The most bytes of tensors made inside that existed at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._sum = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in torch.utils._pytree.tree_leaves(args) if _real(t)}
        for tensor in torch.utils._pytree.tree_leaves(out):
            if _real(tensor) and tensor.untyped_storage()._cdata not in given:
                storage = tensor.untyped_storage()
                if storage._cdata not in self._live:
                    self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self._sum += storage.nbytes()
        if self._sum > self.peak:
            self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
            self._sum = sum(size for _, size in self._live.values())
            self.peak = max(self.peak, self._sum)
        return out


def _real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "meta"


def metered(function: Callable[[], Any]) -> tuple[Any, int]:
    with Meter() as meter:
        result = function()
    return result, meter.peak


def make(case: dict[str, Any], world: int) -> Any:
    make_config = getattr(conftest.make_config, "__wrapped__", None) or conftest.make_config._fixture_function
    config = make_config("")(
        num_learners=world if world > 1 or case["section"] else 0,
        model_dir=case["model"],
        options=case["options"],
        training=case["training"],
        deepspeed=case["section"],
        critic=case.get("critic", True),
    )
    if "teacher" in case:
        config.run = config.run.with_values({"teacher": {"model": case["teacher"]}})
    learner = config.learner_class(config=config, module_spec=config.rl_module_spec)
    learner.build()
    set_adam_eps(learner, EPS)
    return learner


def episodes(seed: int) -> list[Any]:
    """Seven with two prompts, of very different lengths."""
    rng = np.random.default_rng(seed)
    groups = [
        [conftest.single(conftest.random_trajectory(rng, turns=1 + i % 4, truncated=i % 4 == 3)) for i in range(count)]
        for count in (4, 3)
    ]
    return one_prompt_each(groups).episodes


def learner_of(rank: int, case: dict[str, Any]) -> None:
    """One learner; its figures go to a file in ``out``."""
    world, store = case["world"], str(Path(case["out"]) / "store")
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    found: dict[str, Any] = {}
    divide = deepspeed_engine.divide

    def counted(*args: Any, filled: bool = True) -> None:
        _, peak = metered(lambda: divide(*args, filled=filled))
        if filled:
            found["load" if "load" not in found else "load_teacher"] = peak

    learner_module.divide = deepspeed_engine.divide = counted
    learner, out = make(case, world), Path(case["out"])
    if case.get("load"):
        learner.load_shard(case["load"])
    for number in range(case["updates"]):
        seed = number + case.get("first", 0)
        parts = episodes(seed)
        own = parts if world == 1 else parts[:5] if rank == 0 else parts[5:] if rank == 1 else []
        learner.update(training_data=WholeEpisodes(episodes=own))
        learner.offload()
        learner.reload()
        if number == 0:
            _, found["average"] = metered(lambda: learner._update_copies("player"))
        bundle, found["push"] = metered(lambda: learner.pack_weights("player", 1))
        if bundle is not None:
            save_tensors(unpack_state(bundle), out / f"after-{seed}.safetensors")
    averaged = learner.pack_weights("player", 1, WeightUse.EVALUATION)
    if averaged is not None:
        save_tensors(unpack_state(averaged), out / "average.safetensors")
    _, found["export"] = metered(lambda: learner.export_hf(out / "hf", "player", adapter=out / "adapter"))
    _, found["save"] = metered(lambda: learner.save_shard(out / "shards"))
    frozen = {"base": learner.module["player"]} | {name: each.module for name, each in learner.teachers.items()}
    for name, network in frozen.items():
        still = [p for p in network.parameters() if not p.requires_grad]
        found[f"frozen {name}"] = sum(getattr(p, "ds_tensor", p).nbytes for p in still)
    engine = learner.engines["player"]
    shares = [t for name, t in engine.own_state().__enter__().items()]
    found["share"] = sum(t.nbytes for t in shares)
    if learner.references and engine.divides_copies:
        found["reference"] = sum(t.nbytes for t in learner.references["player"]._parameters().values())
    states = learner.get_optimizer("player").state.values()
    found["moments"] = sum(t.nbytes for state in states for name, t in state.items() if name != "step")
    if "offload_optimizer" in ((case["section"] or {}).get("zero_optimization") or {}):
        masters, sums = engine._optimizer.fp32_partitioned_groups_flat, engine._optimizer.grad_partitions_flat_buffer
        found["offloaded"] = found["moments"] + sums.nbytes + sum(p.nbytes + p.grad.nbytes for p in masters)
    held = learner.module["player"].parameters()
    found["whole"] = sum(p.nbytes for p in held)
    (out / f"found-{rank}.json").write_text(json.dumps(found))


def main(cases: list[dict[str, Any]]) -> None:
    import deepspeed  # noqa: F401

    found = []
    for case in cases:
        out = Path(case["out"])
        out.mkdir(parents=True)
        context = torch.multiprocessing.get_context("fork")
        ranks = [context.Process(target=learner_of, args=(rank, case)) for rank in range(case["world"])]
        for rank in ranks:
            rank.start()
        while any(rank.exitcode is None for rank in ranks):
            for rank in ranks:
                rank.join(0.2)
            if any(rank.exitcode for rank in ranks):
                for rank in ranks:
                    rank.kill()
                raise SystemExit(f"a learner of {out} failed")
        found.append([json.loads((out / f"found-{rank}.json").read_text()) for rank in range(len(ranks))])
        print(json.dumps(found[-1]), file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
