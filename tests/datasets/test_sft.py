"""Conversations of files: how they are written down, which of them are learnt from, and what is wrong with others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from episode_parts import collected, rows_in_batch
from pyarrow import parquet

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build
from rllib_lmgame.datasets import sft
from rllib_lmgame.datasets.files import files_of, records_of
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.datasets.readers.chat import read_record
from rllib_lmgame.datasets.replay import replay
from rllib_lmgame.datasets.sft import Facts, SFTDataset, choose, read_all
from rllib_lmgame.datasets.writing import FORMS, conversations
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.policies.chat.chat_datasets import Message, TranscriptWriter
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import episode_record
from rllib_lmgame.rollouts.records import played_parts, trajectory_of

MESSAGES = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
]
AGENTGYM = {
    "conversations": [
        {"from": "human", "loss": None, "value": "You are to add."},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "1+1"},
        {"from": "gpt", "loss": True, "value": "Thought:\nhm\n\nAction:\n2"},
    ],
    "item_id": "add_3",
}
UNMARKED = [{"from": "human", "loss": None, "value": "0+1"}, {"from": "gpt", "loss": None, "value": "1"}]
CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def learnt_of(record: dict[str, Any]) -> list[tuple[str, str, float]]:
    return [(each.role, each.text, each.weight) for each in read_record(record, "x").transcript.messages]


@pytest.mark.parametrize(
    ("record", "weights"),
    [
        ({"messages": MESSAGES}, [0, 0, 1]),
        ({"messages": [*MESSAGES, *MESSAGES[1:]]}, [0, 0, 1, 0, 1]),
        ({"messages": [*MESSAGES[:2], {**MESSAGES[2], "weight": 0}, *MESSAGES[1:]]}, [0, 0, 0, 0, 1]),
        ({"messages": [*MESSAGES[:2], {**MESSAGES[2], "weight": 0.5}]}, [0, 0, 0.5]),
        ({"messages": [{**MESSAGES[1], "weight": 0}, {**MESSAGES[2], "weight": None}]}, [0, 1]),
        (AGENTGYM, [0, 0, 0, 1]),
        ({"conversations": [*UNMARKED, *AGENTGYM["conversations"]]}, [0, 0, 0, 0, 0, 1]),
        ({"conversations": [*UNMARKED, *AGENTGYM["conversations"][:2]]}, [0, 1, 0, 0]),
        ({"conversations": [{"from": "user", "value": "x"}, {"from": "gpt", "value": "y"}]}, [0, 1]),
        ({"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}], "system": "z"}, [0, 0, 1]),
        ({"prompt": "x", "completion": "y"}, [0, 1]),
        ({"prompt": [*MESSAGES, MESSAGES[1]], "completion": [MESSAGES[2]]}, [0, 0, 0, 0, 1]),
    ],
)
def test_what_is_learnt_of_each_form(record: dict[str, Any], weights: list[float]) -> None:
    assert [weight for *_, weight in learnt_of(record)] == weights


def test_tools_and_their_calls_are_kept_as_templates_want_them() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answered = {"role": "tool", "content": [{"type": "text", "text": "2"}], "tool_call_id": "a"}
    record = {"messages": [MESSAGES[1], called, answered, MESSAGES[2]], "tools": '[{"name": "add"}]'}
    transcript = read_record(record, "x").transcript
    assert transcript.tools == ({"name": "add"},)
    assert transcript.messages[1] == Message(
        "assistant", "", 1.0, {"tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}
    )
    assert transcript.messages[2] == Message("tool", "2", 0.0, {"tool_call_id": "a"})
    observed = {"conversations": [{"from": who, "value": "x"} for who in ("human", "gpt", "observation", "gpt")]}
    assert [role for role, *_ in learnt_of(observed)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"text": "x"}, "its columns are text; known are"),
        ({"messages": []}, "messages must be a list of messages, not []"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "role 'narrator' is unknown; known are system"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1: content must be a text, not 3"),
        ({"messages": MESSAGES[:2]}, "nothing of it is learnt"),
        ({"messages": [*MESSAGES[:2], {**MESSAGES[2], "weight": 0}]}, "nothing of it is learnt"),
        ({"messages": MESSAGES[2:]}, "begins with a learnt reply"),
        ({"messages": [MESSAGES[1], {**MESSAGES[2], "content": " "}]}, "message 2: content is empty"),
        ({"messages": [MESSAGES[1], {**MESSAGES[2], "weight": -1}]}, "weight is -1; it must be"),
        ({"messages": [{**MESSAGES[1], "weight": 1}, MESSAGES[2]]}, "message 1: asks for a loss of what user says"),
        ({"conversations": [{"from": "gpt", "value": "x", "loss": 1}]}, "loss is 1; it must be true, false or null"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "write calls as tool_calls"),
        ({"messages": MESSAGES, "tools": "{"}, "tools is no JSON"),
        ({"messages": MESSAGES, "reward": "much"}, "its return is 'much', not a finite number"),
    ],
)
def test_what_cannot_be_learnt_is_named(record: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_record(record, "file, line 3")
    assert caught.value.message.startswith("file, line 3: ") and said in caught.value.message


STATE = {"state": "The goal is up.", "action": "move up\n", "reward": -1, "done": False}
CAR = {
    "buyer_info": {"budget": 30_000},
    "lines": [{"role": who, "text": who[0]} for who in ("Buyer", "Seller", "Buyer", "Seller", "Seller")],
    "output": {"car_bought": True, "msrp": 20_000, "buy_price": 20_000},
}


@pytest.mark.parametrize(
    ("record", "said", "reached", "success"),
    [
        (
            {"sequence": [["Wordle:\n", False], ["s t\n", 1], ["b ", 0], ["g\n", 0], ["c r\n", True], ["g g\n", 0]]}
            | {"reward": [-1, 0, 0, 0, 0], "done": True},
            ["Wordle:\n", "s t\n", "b g\n", "c r\n"],
            -1,
            None,
        ),
        (
            {
                "text_history": ["In a room.", "go east", "In a hall.", "eat", "Done."],
                "rewards": [0, 1],
                "dones": [0, 1],
            },
            ["In a room.", "go east", "In a hall.", "eat"],
            1,
            None,
        ),
        (STATE, ["The goal is up.", "move up\n"], -1, None),
        (STATE | {"return": -7.0}, ["The goal is up.", "move up\n"], -7, None),
        ({"from_state": "8/8 w", "action": "e4"}, ["8/8 w", "e4"], None, None),
        ({"in_text": "a\n\nb", "out_text": "c"}, ["a\n\nb", "c"], None, None),
        (
            {"lines": ["Is it? Or? No.", "Is it a dog? Yes."], "correct": True, "word": ["dog", "hound"]},
            ["Questions:\n", "Is it? Or?", "No.", "Is it a dog?"],
            -1,
            True,
        ),
        ({"lines": ["Is it big? No."], "correct": False, "word": ["dog"]}, ["Questions:\n", "Is it big?"], -1, False),
        (CAR, ["Start\nB\n", "S\n", "B\n", "S\nS\n"], 0.8, True),
        (
            CAR | {"output": {"car_bought": False, "msrp": 20_000, "buy_price": None}},
            ["Start\nB\n", "S\n", "B\n", "S\nS\n"],
            -0.5,
            False,
        ),
    ],
)
def test_what_lmrl_gym_keeps(
    record: dict[str, Any], said: list[str], reached: float | None, success: bool | None
) -> None:
    read = read_record(record, "x")
    messages = read.transcript.messages
    assert [each.text for each in messages] == said
    assert [(each.role, each.weight) for each in messages] == [("user", 0), ("assistant", 1)] * (len(said) // 2)
    assert read.episode_return == (None if reached is None else pytest.approx(reached)) and read.success is success
    assert read.level == ("dog" if "word" in record else "")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"sequence": [["a", 0], ["b"]]}, "entry 2 of sequence is ['b'], not [text, is_action]"),
        ({"sequence": [["a", 1]]}, "begins with a learnt reply"),
        ({"sequence": [["a", 0], [" ", 1]]}, "an action is empty"),
        ({"sequence": [["a", 0], ["b", 1]], "reward": ["x"]}, "a reward is 'x', not a finite number"),
        ({"text_history": ["a"]}, "nothing of it is learnt"),
        ({"lines": ["Is it"], "correct": True}, "line 1 is 'Is it', not a question with its answer"),
        (CAR | {"lines": [{"role": "Dealer", "text": "x"}]}, "not what a Seller or a Buyer says"),
        (CAR | {"output": {"car_bought": True, "msrp": "x", "buy_price": 1}}, "msrp is 'x', not a finite"),
        (CAR | {"output": 3}, "output and buyer_info must be mappings"),
    ],
)
def test_what_of_them_cannot_be_learnt_is_named(record: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_record(record, "file, line 3")
    assert caught.value.message.startswith("file, line 3: ") and said in caught.value.message


# -- files ------------------------------------------------------------------------------------------------------------


def records(path: Path) -> list[tuple[str, Any]]:
    return [(where.removeprefix(f"{path}, "), record) for where, record in records_of(path)]


def test_a_list_lines_and_parquet_hold_the_same(tmp_path: Path) -> None:
    rows = [{"messages": MESSAGES, "n": number} for number in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    for name in "ab":  # Notepad's mark of UTF-8 in front.
        (file,) = tmp_path.glob(f"{name}.json*")
        (tmp_path / f"marked-{file.name}").write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    names = ("a.json", "b.jsonl", "c.parquet", "marked-a.json", "marked-b.jsonl")
    found = [records(tmp_path / name) for name in names]
    assert [[record for _, record in some] for some in found] == [rows] * 5
    assert [where for where, _ in found[1]] == ["line 1", "line 3", "line 5"]
    assert [where for where, _ in found[2]] == ["row 1", "row 2", "row 3"]
    assert [where for where, _ in found[0]] == ["entry 1", "entry 2", "entry 3"]


def test_a_list_of_lmrl_gyms_steps_is_an_episode(tmp_path: Path) -> None:
    steps = [STATE, STATE | {"state": "You are there.", "reward": 0, "done": True}]
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(steps)}\n{json.dumps(steps[1:])}\n")
    (tmp_path / "x.json").write_text(json.dumps([steps, steps[1:]], indent=1))
    for name, places in {"x.jsonl": ["line 1", "line 2"], "x.json": ["entry 1", "entry 2"]}.items():
        assert records(tmp_path / name) == list(zip(places, [{"steps": steps}, {"steps": steps[1:]}], strict=True))
    others = [{"reward": 1, "messages": MESSAGES}, {"reward": 0, "messages": MESSAGES}]
    for indent in (None, 1):  # Other records may begin with a reward, in a list of one line or several.
        (tmp_path / "x.jsonl").write_text(json.dumps(others, indent=indent))
        assert [record for _, record in records(tmp_path / "x.jsonl")] == others
    (tmp_path / "x.jsonl").write_text(json.dumps([STATE | {"reward": "b"}]))
    with pytest.raises(ConfigError, match="line 1: step 1: reward is 'b', not a finite number"):
        list(read_all(str(tmp_path / "x.jsonl")))


def test_steps_have_their_own_rewards_and_rows(make_runner: Any) -> None:
    """A row of a step is the one that its state and action alone make, so that any number of them fits."""
    steps = [STATE, STATE | {"state": "You are there.", "action": "stay", "reward": 0, "done": True}]
    read = read_record({"steps": steps}, "x")
    assert (read.rewards, read.episode_return, read.ended) == ((-1.0, 0.0), -1.0, True)
    assert not read_record({"steps": steps[:1]}, "x").ended, "cut short"
    writer = TranscriptWriter(make_runner().chat("player"))
    (turns,) = writer.write([read.transcript])
    alone = [turn for step in steps for turn in writer.write([read_record(step, "x").transcript])[0]]
    assert [turn.new_row for turn in turns] == [True, True]
    for turn, expected in zip(turns, alone, strict=True):
        assert turn.prompt_ids.tolist() == expected.prompt_ids.tolist()
        assert turn.reply_ids.tolist() == expected.reply_ids.tolist()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": 1}\n{"a": \n', "line 2: no JSON"),
        (b'{"a": 1}\n[1]\n', "line 2: a record must be a mapping, not list"),
        (b'[{"a": 1},\n {"a": }]', "no JSON: Expecting value: line 2"),
        (b'[{"a": 1},\n 3]', "entry 2: a record must be a mapping, not int"),
        (b'[{"a": "\xff"}]', "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (json.dumps([STATE]).encode() + b'\n[{"state": "a"', "line 2: no JSON"),
        (json.dumps([STATE]).encode() + b'\n[{"state": "a"}]', "line 2: a record must be a mapping, not list"),
    ],
)
def test_a_broken_file_is_named_by_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(records_of(tmp_path / "x.json"))
    assert said in caught.value.message and str(tmp_path / "x.json") in caught.value.message


def test_keys_that_other_rows_of_a_table_have_are_not_there(tmp_path: Path) -> None:
    """A table has every key in every row, as null where a row has none."""
    calls = [{"function": {"name": "add", "arguments": each}} for each in ({"a": 1}, {"where": "door"})]
    rows = [{"messages": [MESSAGES[1], {"role": "assistant", "content": "", "tool_calls": [call]}]} for call in calls]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    read = [read_record(record, where) for where, record in records_of(tmp_path / "x.parquet")]
    assert [each.transcript.messages[1].more["tool_calls"] for each in read] == [[call] for call in calls]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_text_is_kept_by_one_name(key: str) -> None:
    said = read_record({"messages": [MESSAGES[1], {**MESSAGES[2], key: "hm"}]}, "x").transcript.messages
    assert said[1].more == {"reasoning_content": "hm"}


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(ConfigError, match=r"x\.parquet is no table in Parquet's form"):
        list(records_of(tmp_path / "x.parquet"))


def test_names_stand_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.jsonl", "a.json", "train-0.parquet", "notes.txt"):
        (tmp_path / name).touch()
    names = lambda given: [path.name for path in files_of(given)]  # noqa: E731
    assert names(str(tmp_path)) == ["a.json", "b.jsonl", "train-0.parquet"]
    assert names(f"{tmp_path}/*.json*") == ["a.json", "b.jsonl"]
    assert names([f"{tmp_path}/b.jsonl", str(tmp_path)]) == ["b.jsonl", "a.json", "train-0.parquet"]
    for missing in (f"{tmp_path}/c.json", f"{tmp_path}/*.csv", "data:nothing", []):
        with pytest.raises(ConfigError, match=r"^data: (no such file|no data set|names no file)"):
            files_of(missing)
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: asked.append((a, k)) or str(tmp_path))
    assert names("hf:who/what:train") == ["train-0.parquet"] and len(names("hf:who/what")) == 3
    assert asked[0][0] == ("who/what",) and asked[0][1]["repo_type"] == "dataset"
    with pytest.raises(ConfigError, match="of a split 'test'"):
        files_of("hf:who/what:test")


# -- choices ----------------------------------------------------------------------------------------------------------

FACTS = [Facts(f"line {n}", "ab"[n % 2], str(n // 4), float(n), success=n > 2) for n in range(8)]


def chosen(facts: list[Facts] = FACTS, **options: Any) -> list[int]:
    return choose(facts, build(SupervisedOptions, options))[0]


def test_choices() -> None:
    assert chosen() == list(range(8))
    assert chosen(min_return=5) == [5, 6, 7]
    assert chosen(successes_only=True) == [3, 4, 5, 6, 7]
    assert chosen(successes_only=True, one_per_level="first") == [3, 4, 5]
    assert chosen(top_share=0.25) == [6, 7], "the best of each game"
    assert chosen(top_share=0.01) == [6, 7], "at least one"
    assert chosen(one_per_level="best") == [2, 3, 6, 7]
    assert chosen(one_per_level="first") == [0, 1, 4, 5]
    assert chosen(one_per_level="best", min_return=3, top_share=0.5) == [6, 7]


def test_equal_returns_keep_the_order_of_the_files() -> None:
    facts = [Facts(str(n), "", "x", 1.0) for n in range(4)]
    assert chosen(facts, top_share=0.5) == [0, 1] and chosen(facts, one_per_level="best") == [0]


def test_whole_levels_are_held_out_the_same_whatever_else_is_chosen() -> None:
    facts = [Facts(str(n), "", str(n // 2), float(n)) for n in range(40)]
    training, held_out = choose(facts, SupervisedOptions(validation_share=0.25))
    assert len(held_out) == 10 and sorted([*training, *held_out]) == list(range(40))
    assert {n // 2 for n in held_out}.isdisjoint(n // 2 for n in training)
    assert choose(facts[::-1], SupervisedOptions(validation_share=0.25))[1] == sorted(39 - n for n in held_out)


@pytest.mark.parametrize(
    ("facts", "options", "said"),
    [
        ([Facts("line 7", "", "", None)], {"min_return": 1}, "min_return: needs returns, but line 7 says none"),
        (FACTS, {"min_return": 9}, "min_return: leaves none of 8 conversations; their best return is 7"),
        (
            [Facts("line 7", "", "", 1.0)],
            {"one_per_level": "first"},
            "one_per_level: needs levels, but line 7 says none",
        ),
        (FACTS[:3], {"successes_only": True}, "successes_only: leaves none of 3 conversations"),
        (FACTS, {"successes_only": True, "min_return": 9}, "leaves none of 5 conversations; their best return is 7"),
        ([Facts("line 7", "", "", 1.0)], {"successes_only": True}, "successes_only: needs to know it, but line 7 says"),
        (FACTS[:1], {"validation_share": 0.5}, "validation_share: of 1 conversations leaves none"),
    ],
)
def test_choices_that_cannot_be_made(facts: list[Facts], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose(facts, build(SupervisedOptions, options))


def test_steps_of_epochs() -> None:
    steps = lambda **options: build(SupervisedOptions, options).last_step(100)  # noqa: E731
    assert steps() == 1000 and steps(epochs=1, episodes_per_step=32) == 4
    assert steps(epochs=1000, episodes_per_step=32) == 3125, "the default of max_steps does not cut"
    assert steps(epochs=1000, episodes_per_step=32, max_steps=7) == 7
    assert steps(epochs=0.001) == 1


# -- episodes ---------------------------------------------------------------------------------------------------------


def numbered(count: int, **more: Any) -> list[dict[str, Any]]:
    """Conversations of which each says its number."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"say {number}"},
                {"role": "assistant", "content": f"{number}", "weight": 0.5},
                {"role": "user", "content": "again"},
                {"role": "assistant", "content": f"{number}"},
            ],
            "reward": number,
            **more,
        }
        for number in range(count)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., SFTDataset]:
    def make(rows: list[dict[str, Any]], most: int = 1000, **options: Any) -> SFTDataset:
        path = tmp_path / "x.json"
        path.write_text(json.dumps(rows))
        return SFTDataset(build(SupervisedOptions, {"data": str(path), **options}), {"player": most})

    return make


MakeRunner = Callable[..., TextGameEnvRunner]


def said_in(episodes: list[Any]) -> list[str]:
    return [next(iter(episode.agent_episodes.values())).actions.data[0] for episode in episodes]


def test_each_pass_is_a_new_order_of_all(source, make_runner: MakeRunner) -> None:
    data, runner = source(numbered(8), shuffle_seed=3), make_runner()
    passes = [said_in(data.episodes(start, 8, runner)) for start in (0, 8)]
    assert [sorted(each) for each in passes] == [[str(n) for n in range(8)]] * 2 and passes[0] != passes[1]
    assert said_in(data.episodes(5, 6, runner)) == [*passes[0][5:], *passes[1][:3]]
    assert said_in(source(numbered(8), shuffle_seed=None).episodes(0, 8, runner)) == [str(n) for n in range(8)]


def test_logged_episodes_are_replayed_once_as_far_as_there_is_room(
    source, make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = collected("lmgame/FrozenLake-v0", player="random", episodes=6)
    data = source([episode_record(each) for each in played], shuffle_seed=3)
    runner = make_runner("lmgame/FrozenLake-v0")
    replayed: list[str] = []

    def counted(session: Any, table: Any, name: str) -> Any:
        replayed.append(name)
        return replay(session, table, name)

    monkeypatch.setattr(sft, "replay", counted)
    passes = [data.episodes(start, 6, runner) for start in (0, 6)]
    parts = [{id(each.agent_episodes["player"]) for each in some} for some in passes]
    assert len(replayed) == 6 and parts[0] == parts[1]
    assert [each.id_ for some in passes for each in some] == [f"sft-{number}" for number in range(12)]
    monkeypatch.setattr(sft, "MOST_KEPT", 0)
    data._replayed.clear()
    data.episodes(12, 12, runner)
    assert len(replayed) == 18


def test_rows_learn_the_replies_alone_with_their_weights(source, make_runner: MakeRunner) -> None:
    runner = make_runner()
    data = source(numbered(3), shuffle_seed=None)
    chat, trajectories = runner.chat("player"), []
    for episode in data.episodes(1, 2, runner):
        episode.validate()
        trajectories += [trajectory_of(part) for part in played_parts(episode, ["player"])]
    batch = TokenBatch.from_trajectories(trajectories, max_row_tokens=1000)
    weights = iter(batch.action_weights)
    for number, row in zip((1, 2), rows_in_batch(batch), strict=True):
        text = chat.tokenizer.decode(row.input_ids)
        assert text.count(str(number)) == 3 and text.startswith(chat.pieces.bare_head)
        replies = [row.input_ids[(row.turn == turn) & row.loss_mask] for turn in range(2)]
        assert [chat.decode(reply) for reply in replies] == [f"{number}", f"{number}"]
        assert all(reply[-1] == chat.end_id for reply in replies)
        for turn, own in enumerate((0.5, 1.0)):
            assert [next(weights) for _ in replies[turn]] == [own] * len(replies[turn])
    size = batch.size_of(batch.microbatches(1000))
    assert size.weighed == size.tokens == batch.num_actions


def test_long_conversations_are_dropped_and_counted(source, make_runner: MakeRunner) -> None:
    runner, rows = make_runner(), numbered(4)
    rows[2]["messages"][0]["content"] = "say it " * 200
    dropped = source(rows, 200, shuffle_seed=None)
    assert said_in(dropped.episodes(0, 4, runner)) == ["0", "1", "3"] and dropped.left_out == 1
    with pytest.raises(ConfigError, match=r"all 1 conversations are left out; .*x\.json"):
        source(rows[2:3], 200).episodes(0, 1, runner)


def test_a_conversation_that_the_template_refuses_is_named_before_it_is_learnt(source, make_runner: MakeRunner) -> None:
    strict = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}"
        "<|im_start|>assistant {% endif %}"
    )
    runner, rows = make_runner(model={"chat_template": strict}), numbered(3)
    rows[1]["messages"][2]["role"] = "tool"
    with pytest.raises(ConfigError, match=r"x\.json, entry 2: the chat template cannot write it: .*no tools here"):
        source(rows).check(runner.chat)
    data = source(rows, shuffle_seed=None)
    assert said_in(data.episodes(0, 3, runner)) == ["0", "2"] and data.left_out == 1
    for lost, said in (({"tool_calls": [CALL]}, "a call of 'add'"), ({"thinking": "hm"}, "the reasoning of a reply")):
        rows = numbered(3)
        rows[1]["messages"][-1].update(lost)
        with pytest.raises(ConfigError, match=rf"x\.json, entry 2: .* it does not show {said}"):
            source(rows).check(runner.chat)


def test_held_out_conversations_are_never_learnt_and_made_once(source, make_runner: MakeRunner) -> None:
    data, runner = source(numbered(20), validation_share=0.2), make_runner()
    held_out = data.held_out(runner)
    assert len(held_out) == 4 and data.held_out(runner) is held_out
    assert len(source(numbered(1) * 10 + numbered(3), validation_share=0.1).training) in (2, 12), "equals stay together"
    assert set(said_in(held_out)).isdisjoint(said_in(data.episodes(0, 32, runner)))


def test_an_empty_file_is_named(source) -> None:
    with pytest.raises(ConfigError, match=r"x\.json holds no episodes or conversations"):
        source([])


# -- written and read again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("game", ["lmgame/FrozenLake-v0", "lmgame/TicTacToe-v0"])
def test_what_collect_writes_is_read_as_it_was_played(game: str, form: str) -> None:
    options = LanguageModelOptions()
    for played in collected(game, player="random", episodes=4, seed=1):
        record = episode_record(played)
        written = list(conversations(record, form, options))
        read = [read_record(json.loads(json.dumps(row)), "x") for row in written]
        learnt = [said.text for each in read for said in each.transcript.messages if said.learnt]
        played_by: dict[str, list[str]] = {
            agent: [step["actions"][agent] for step in record["steps"] if agent in step["actions"]]
            for agent in (seat["agent_id"] for seat in record["trajectories"])
        }
        assert learnt == [f"<answer>{action}</answer>" for actions in played_by.values() for action in actions]
        returns = {seat["agent_id"]: seat["return"] for seat in record["trajectories"]}
        each_turn = form == "prompt_completion"
        wanted = [returns[agent] for agent, some in played_by.items() for _ in (some if each_turn else some[:1])]
        assert [each.episode_return for each in read] == wanted
        assert {each.game for each in read} == {game} and all(each.level for each in read)


def test_a_reply_that_could_not_be_read_is_not_learnt() -> None:
    (played,) = collected("lmgame/FrozenLake-v0", player="solver", episodes=1)
    record = episode_record(played)
    record["steps"][0]["actions"]["player"] = ""
    for form in FORMS:
        read = [read_record(row, "x") for row in conversations(record, form, LanguageModelOptions())]
        assert sum(len(each.transcript.learnt) for each in read) == len(record["steps"]) - 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("history", [{"history": "window", "history_window": 2}, {"history": "strip_think"}])
def test_each_reply_is_learnt_as_it_was_said_where_later_prompts_change_it(history: dict[str, Any], form: str) -> None:
    """A window leaves earlier replies out, and `strip_think` their reasoning."""
    (played,) = collected("lmgame/TicTacToe-v0", player="random", episodes=1, seed=1)
    record = episode_record(played)
    agent = next(iter(record["steps"][0]["actions"]))
    own = [step for step in record["steps"] if agent in step["actions"]]
    for number, step in enumerate(own):
        step["actions"][agent], step["thoughts"][agent] = str(number) * (number != 1), f"thought {number}"
    record["trajectories"] = [seat for seat in record["trajectories"] if seat["agent_id"] == agent]
    written = conversations(record, form, build(LanguageModelOptions, history))
    read = [read_record(row, "x").transcript for row in written]
    replies = [f"<think>thought {number}</think><answer>{number}</answer>" for number in range(len(own)) if number != 1]
    assert len(replies) > 2, "more than the window shows"
    assert [[said.text for said in each.messages if said.learnt] for each in read] == [[reply] for reply in replies]
    assert all(each.messages[-1].learnt for each in read)
    *earlier, last = (said.text for said in read[-1].messages)
    before = re.findall(r"<answer>\d</answer>", "".join(earlier))
    assert (len(before) == 1) == ("history_window" in history) and not any(last.endswith(each) for each in before)
