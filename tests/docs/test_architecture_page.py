"""The table of architectures has every causal model of the installed Transformers, with what trying it gives."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pages() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield importlib.import_module("architecture_page")


def listed(pages: ModuleType) -> dict[str, str]:
    lines = [line.split("|") for line in pages.PAGE.read_text().splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): cells[2].strip() for cells in lines if cells[1].strip() != "`model_type`"}


def test_every_causal_model_is_listed(pages: ModuleType) -> None:
    assert sorted(listed(pages)) == pages.model_types(), "run `python docs/architecture_page.py`"


@pytest.mark.parametrize(
    "model_type", ["qwen2", "stablelm", "nemotron", "lfm2", "qwen3_next", "gptj", "deepseek_v2", "bert"]
)
def test_what_is_listed_is_what_trying_gives(model_type: str, pages: ModuleType) -> None:
    assert pages.verdict(model_type) == listed(pages)[model_type]


@pytest.mark.slow
def test_the_whole_table_is_up_to_date(pages: ModuleType) -> None:
    pytest.importorskip("vllm")
    assert pages.page() == pages.PAGE.read_text(), "run `python docs/architecture_page.py`"
