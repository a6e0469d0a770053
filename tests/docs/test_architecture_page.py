"""The table of architectures has every causal model of the installed Transformers, with what trying it gives."""

from __future__ import annotations

import architecture_page as pages
import pytest


def listed() -> dict[str, str]:
    lines = [line.split("|") for line in pages.PAGE.read_text().splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): cells[2].strip() for cells in lines if cells[1].strip() != "`model_type`"}


def test_every_causal_model_is_listed() -> None:
    table = listed()
    assert sorted(table) == pages.model_types(), "run `python docs/architecture_page.py`"
    for family in ("qwen3_5", "qwen3_next", "gemma2", "gemma3", "gpt_oss", "phi3", "deepseek_v3", "lfm2", "falcon_h1"):
        assert not table[family].startswith("refused")


@pytest.mark.parametrize(
    "model_type", ["qwen2", "stablelm", "nemotron", "lfm2", "qwen3_next", "gptj", "deepseek_v2", "inkling_text", "bert"]
)
def test_what_is_listed_is_what_trying_gives(model_type: str) -> None:
    assert pages.verdict(model_type) == listed()[model_type]


@pytest.mark.slow
def test_the_whole_table_is_up_to_date() -> None:
    pytest.importorskip("vllm")
    assert pages.page() == pages.PAGE.read_text(), "run `python docs/architecture_page.py`"
