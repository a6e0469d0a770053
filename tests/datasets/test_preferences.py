"""Files of preferences: what is compared with what, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.datasets.options import DPOOptions
from rllib_lmgame.datasets.preferences import Candidate, PreferenceDataset, choose_pairs
from rllib_lmgame.datasets.readers.chat import read_pair
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.records import played_parts, trajectory_of


def options_of(**options: Any) -> DPOOptions:
    return build(DPOOptions, options)


def messages(*pairs: str) -> list[dict[str, str]]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": names[pair[0]], "content": pair[2:]} for pair in pairs]


def agentgym(*pairs: str) -> list[dict[str, Any]]:
    names = {"u": "human", "a": "gpt"}
    return [{"from": names[pair[0]], "value": pair[2:], "loss": pair[0] == "a"} for pair in pairs]


ASKED = messages("s add", "u 1+1")
PAIR = {"prompt": ASKED, "chosen": messages("a 2"), "rejected": messages("a 3")}


@pytest.mark.parametrize(
    ("record", "chosen", "rejected"),
    [
        (PAIR, "add|1+1|2*", "add|1+1|3*"),
        ({"prompt": "1+1", "chosen": "2", "rejected": "3"}, "1+1|2*", "1+1|3*"),
        ({"prompt": "1+1", "chosen": "2", "rejected": "3", "system": "add"}, "add|1+1|2*", "add|1+1|3*"),
        (
            {"chosen": [*ASKED, *messages("a 2")], "rejected": [*ASKED, *messages("a 3", "u no", "a 4")]},
            "add|1+1|2*",
            "add|1+1|3*|no|4*",
        ),
        (
            {
                "chosen": [*ASKED, *messages("a hm", "u now", "a 2")],
                "rejected": [*ASKED, *messages("a hm", "u now", "a 3")],
            },
            "add|1+1|hm|now|2*",
            "add|1+1|hm|now|3*",
        ),
        (
            {
                "id": 7,
                "prompt": agentgym("u rules", "a OK", "u door"),
                "chosen": agentgym("a open", "u in", "a take"),
                "rejected": agentgym("a wait"),
            },
            "rules|OK|door|open*|in|take*",
            "rules|OK|door|wait*",
        ),
        # Whole conversations that say the prompt again.
        (
            {"prompt": "1+1", "chosen": messages("u 1+1", "a 2"), "rejected": messages("u 1+1", "a 3")},
            "1+1|2*",
            "1+1|3*",
        ),
        (
            {
                "prompt": "1+1",
                "system": "",
                "chosen": [*ASKED, *messages("a 2")],
                "rejected": [*ASKED, *messages("a 3")],
            },
            "add|1+1|2*",
            "add|1+1|3*",
        ),
        (
            {**PAIR, "chosen": [*ASKED, *messages("a 2")], "rejected": [*ASKED, *messages("a 3")]},
            "add|1+1|2*",
            "add|1+1|3*",
        ),
        (
            {"prompt": "go", "chosen": messages("a x", "u go", "a y"), "rejected": messages("a x", "u go", "a z")},
            "go|x*|go|y*",
            "go|x*|go|z*",
        ),
    ],
)
def test_what_a_pair_says(record: dict[str, Any], chosen: str, rejected: str) -> None:
    """Replies of the sides are learnt; those of the prompt, or of what both begin with, are context."""
    found = read_pair(record, "x")
    shown = ["|".join(each.text + "*" * each.learnt for each in side.transcript.messages) for side in found]
    assert shown == [chosen, rejected]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (PAIR | {"rejected": messages("a 2 ")}, "chosen and rejected say the same"),
        (PAIR | {"rejected": messages("u 3")}, "rejected has no reply of the assistant"),
        (PAIR | {"rejected": " "}, "rejected is empty"),
        (
            {"chosen": messages("u 1+1", "a 2"), "rejected": messages("u 1+2", "a 2")},
            "begin differently and have no prompt; a pair is of one level",
        ),
        ({"chosen": "2", "rejected": "3"}, "chosen and rejected are texts, which need a prompt beside them"),
        (
            {"chosen": messages("u 1+1", "a 2"), "rejected": messages("u 1+1", "a 2")},
            "chosen has no reply of the assistant that is its own",
        ),
    ],
)
def test_a_pair_that_is_none_is_named(record: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pair(record, "file, line 3")
    assert caught.value.message.startswith("file, line 3: ") and words in caught.value.message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"reward_gap": 0.5}, ["a1-a0", "c3-c2.5"]),
        ({"reward_gap": 0.5, "pairs_per_level": "all"}, ["a1-a0", "a1-a0.5", "a0.5-a0", "c3-c2.5"]),
        ({"reward_gap": 0.6}, ["a1-a0"]),
    ],
)
def test_which_are_compared(options: dict[str, Any], expected: list[str]) -> None:
    """Those of one level whose returns differ enough; level b has no two that do."""
    played = (("a", 0.0), ("b", 1.0), ("a", 1.0), ("a", 0.5), ("b", 1.0), ("c", 2.5), ("c", 3.0))
    candidates = [Candidate(level, value, f"{level}{value:g}") for level, value in played]
    assert [f"{better}-{worse}" for better, worse in choose_pairs(candidates, options_of(**options))] == expected


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., PreferenceDataset]:
    def make(rows: list[Any], most: int = 1000, **options: Any) -> PreferenceDataset:
        path = tmp_path / "data.json"
        path.write_text(json.dumps(rows))
        return PreferenceDataset(options_of(data=str(path), **options), {"player": most})

    return make


def played(level: str, reply: str, value: float | None = None, **more: Any) -> dict[str, Any]:
    row = {"messages": messages("u " + level, "a " + reply), "item_id": level, **more}
    return row if value is None else row | {"reward": value}


def shown_pairs(pairs: PreferenceDataset) -> list[str]:
    return [
        "-".join(side.source.transcript.messages[-1].text + "+" * side.chosen for side in unit)  # type: ignore[union-attr]
        for unit in pairs.units
    ]


LOG = [played("a", "x", 1.0), played("b", "y", 0.0), played("a", "z", 0.5), played("b", "w", 0.05)]


def test_conversations_of_a_level_are_compared_by_their_returns(source: Callable[..., PreferenceDataset]) -> None:
    assert shown_pairs(source(LOG)) == ["x+-z"]
    assert shown_pairs(source(LOG, reward_gap=0.05)) == ["x+-z", "w+-y"]
    assert shown_pairs(source([*LOG, PAIR])) == ["2+-3", "x+-z"]


@pytest.mark.parametrize(
    ("rows", "options", "key", "words"),
    [
        (LOG[:1], {}, "data", "leaves no pair: no two of 1 conversations are of one level, with returns"),
        ([played("a", "x")], {}, "data", "entry 1: is no pair, and says no return"),
        ([{"messages": messages("u a", "a b")}], {}, "data", "is no pair, and says no level"),
        (
            [{"prompt_input_ids": [1], "chosen_input_ids": [2], "rejected_input_ids": [3]}],
            {},
            "data",
            "holds token ids, maybe of another tokenizer; it must hold texts",
        ),
        (
            [played("a", "x", 1.0), {"messages": messages("u b", "a y"), "item_id": "a", "reward": 0}],
            {},
            "data",
            "begins otherwise than",
        ),
    ],
)
def test_what_cannot_be_compared_is_named(
    rows: list[Any], options: dict[str, Any], key: str, words: str, source: Callable[..., PreferenceDataset]
) -> None:
    with pytest.raises(ConfigError) as caught:
        source(rows, **options)
    assert caught.value.path == key and words in caught.value.message


def test_sides_are_rows_whose_reward_says_which_is_chosen(
    source: Callable[..., PreferenceDataset], make_runner: Any
) -> None:
    runner = make_runner(options=LanguageModelOptions(context_length=128))
    rows = [PAIR, PAIR | {"rejected": messages("a x", "u y", "a z")}, PAIR | {"chosen": messages("a " + "long " * 200)}]
    pairs = source(rows, most=128, shuffle_seed=None)
    episodes = pairs.episodes(0, 6, runner)
    assert pairs.passed_over == 2 and len(episodes) == 8, "the third of two passes is too long"
    parts = [part for episode in episodes for part in played_parts(episode, ["player"])]
    batch = TokenBatch.from_trajectories(list(map(trajectory_of, parts)), max_row_tokens=128)
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [
        float(batch.rewards[a:b].sum())
        for a, b in zip(batch.trajectory_offsets, batch.trajectory_offsets[1:], strict=False)
    ] == [1, -1] * 4
    assert batch.episodes[:4] == ("pair-0-chosen", "pair-0-rejected", "pair-1-chosen", "pair-1-rejected")
    assert batch.episodes[4:] == batch.episodes[:4], "the same for good"
    again = [part.extra_model_outputs["turn"].data for part in parts]
    assert [len(turns) for turns in again] == [1, 1, 1, 2] * 2
    assert not source(rows[::-1], most=128, shuffle_seed=None).episodes(0, 1, runner), "others may be shorter"
    with pytest.raises(ConfigError, match="all 2 pairs so far are left out"):
        source(rows[2:], most=128).episodes(0, 2, runner)
