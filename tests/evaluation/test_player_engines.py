"""Which engine a player's replies come from, and with how many threads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.base.group import build
from rllib_lmgame.evaluation.players import engines, naming
from rllib_lmgame.evaluation.players.language_model import LocalModel, hugging_face_player
from rllib_lmgame.evaluation.players.naming import make_players
from rllib_lmgame.evaluation.players.settings import PlayerSettings, Sections
from rllib_lmgame.inference.options import InferenceOptions


class Replies:
    """Stands for an engine that is started."""

    made: list[tuple[Any, ...]]

    def __init__(self, directory: str, options: Any, **more: Any) -> None:
        self.made.append((directory, options.num_threads, options.max_num_seqs, more["context_length"]))

    async def start(self) -> None:
        """At once."""

    async def shutdown(self) -> None:
        """At once."""


@pytest.mark.parametrize(
    ("few", "installed", "engine", "by_vllm"),
    [
        (0, True, "vllm", True),
        (0, False, "vllm", False),
        (0, True, "transformers", False),
        (10_000_000, True, "vllm", False),
    ],
)
def test_vllm_replies_where_it_is_installed_and_the_model_is_not_small(
    few: int, installed: bool, engine: str, by_vllm: bool, tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "FEW_PARAMETERS", few)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: object() if installed else None)
    settings = PlayerSettings(sections=build(Sections, {"inference": {"engine": engine}}))
    player = hugging_face_player("a", f"hf:{tiny_model_dir}", settings)
    assert isinstance(player, LocalModel) and player.by_vllm is by_vllm


def test_models_that_play_side_by_side_share_the_cores(tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Replies, "made", made, raising=False)
    monkeypatch.setattr(engines, "FEW_PARAMETERS", 0)
    monkeypatch.setattr("rllib_lmgame.evaluation.players.language_model.VLLMReplies", Replies)
    monkeypatch.setattr("rllib_lmgame.base.threads.usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    settings = PlayerSettings(at_once=6, sections=build(Sections, {"language_model": {"context_length": 96}}))
    players = make_players([f"{name}=hf:{tiny_model_dir}" for name in "ab"] + ["random"], settings)

    async def enter_all() -> None:
        for player in (players["a"], players["b"]):
            async with player:
                pass

    asyncio.run(enter_all())
    assert made == [(tiny_model_dir, 4, 6, 96)] * 2


def test_more_models_than_cores_wait_for_no_cpu(tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr("rllib_lmgame.algorithms.cluster.ray_cluster.be_connected", lambda num_cpus: False)

    def create(name: str, directory: str, options: Any, **more: Any) -> Any:
        asked.append(options.num_cpus_per_engine)
        raise TimeoutError

    monkeypatch.setattr("rllib_lmgame.inference.serving.group.EngineGroup.create", create)
    with pytest.raises(TimeoutError):
        asyncio.run(engines.VLLMReplies(tiny_model_dir, InferenceOptions(), context_length=96).start())
    assert asked == [0]


def test_policies_of_one_run_are_counted_as_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(naming, "make_player", lambda name, source, settings: counted.append(settings.models))
    make_players([f"{tmp_path}:white", f"b={tmp_path}:black", "random"], PlayerSettings())
    assert counted == [2, 2, 2]
