"""What others know of an engine, found by name and by import path."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.experiments.checks.footprint import footprint
from rllib_lmgame.inference.engines.threaded import ThreadedEngine
from rllib_lmgame.inference.engines.vllm_engine import VLLMEngine, environment
from rllib_lmgame.inference.registry import VLLM, EngineEntry, find_engine
from rllib_lmgame.settings.plugins import ENGINES
from rllib_lmgame.settings.sections.inference import InferenceOptions


class Mine(ThreadedEngine):
    """An engine of somebody's, of which nothing more is known."""


class MyVLLM(VLLMEngine):
    """An engine of somebody's that changes ours."""


def variables(options: InferenceOptions) -> dict[str, str]:
    return {"MINE": str(options.num_threads)}


ENTRY = EngineEntry(
    "mine",
    engine=f"{__name__}:Mine",
    over_devices=False,
    environment=f"{__name__}:variables",
    reserves_cache=True,
    process_mib=50.0,
)


@pytest.mark.parametrize("name", ENGINES)
def test_engines_of_this_package_belong_to_their_entries(name: str) -> None:
    entry = find_engine(name)
    assert entry.name == name and entry.engine_class().entry is entry


def test_nothing_is_loaded_to_look_an_engine_up() -> None:
    heavy = {"torch", "ray", "vllm", "transformers"}
    code = f"import sys, rllib_lmgame.inference.registry; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert ran.stdout.strip() == "set()"


def test_a_derived_class_is_known_as_what_it_derives_from() -> None:
    """Also for what its process needs before it imports anything."""
    entry, options = find_engine(f"{__name__}:MyVLLM"), InferenceOptions(num_threads=2)
    assert entry.engine_class() is MyVLLM and entry.reserves_cache
    assert entry.variables(options) == environment(options) == VLLM.variables(options)


def test_an_engine_of_others_is_known_by_its_entry_or_by_the_defaults() -> None:
    plain, told = find_engine(f"{__name__}:Mine"), find_engine(f"{__name__}:ENTRY")
    assert told is ENTRY and plain == EngineEntry(f"{__name__}:Mine", f"{__name__}:Mine")
    assert plain.engine_class() is told.engine_class() is Mine
    assert plain.variables(InferenceOptions(num_threads=3)) == {"OMP_NUM_THREADS": "3"}
    assert plain.variables(InferenceOptions(num_gpus_per_engine=1)) == {}
    assert told.variables(InferenceOptions(num_threads=3)) == {"MINE": "3"}


@pytest.mark.parametrize("name", ["VLLM", "vlm", "transformer"])
def test_a_name_that_is_none_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(ConfigError, match=r"no engine `.*`; did you mean `(vllm|transformers)`"):
        find_engine(name)


def test_the_estimate_of_memory_asks_the_entry(make_config: Callable[..., Any]) -> None:
    def engine(name: str) -> Any:
        inference = {"engine": name, "kv_cache_memory_mb": 100}
        return next(p for p in footprint(make_config(inference=inference)).processes if p.name.startswith("engine"))

    plain, told = engine(f"{__name__}:Mine"), engine(f"{__name__}:ENTRY")
    assert (told.process, plain.process) == (50.0, 600.0)
    assert told.parts["kv cache"] == 100 and "kv cache" not in plain.parts


def test_an_entry_that_takes_no_weights_over_devices_is_not_given_any(make_config: Callable[..., Any]) -> None:
    inference = {"engine": f"{__name__}:ENTRY", "weight_transport": "nccl", "num_gpus_per_engine": 1}
    with pytest.raises(ConfigError, match="`mine` takes object_store"):
        make_config(inference=inference, num_gpus_per_learner=1, num_learners=1).validate()
