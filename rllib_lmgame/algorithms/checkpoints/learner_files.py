"""Moves files of learners, also on other nodes, into and out of a checkpoint, whose models must suit the run.

Learners that see the algorithm's directory (same node or shared file system) use it directly.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.rllib.core.learner.learner_group import LearnerGroup

from rllib_lmgame.algorithms.checkpoints.manifest import LEARNER_SHARDS, adapter_directory, hf_directory, read_json
from rllib_lmgame.algorithms.cluster.workers import LearnerError, ask_learner, foreach_learner
from rllib_lmgame.base.errors import CheckpointError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.learners.options import WeightUse
from rllib_lmgame.policies.model.adapters import CONFIG_FILE, IN_PEFT, as_begun
from rllib_lmgame.policies.model.files import MAX_JSON_BYTES, TOKENIZER_FILES, load_tokenizer, model_directory

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig


CHUNK_BYTES = 64 << 20


@contextmanager
def written_by_learners(learner_group: LearnerGroup, directory: Path) -> Iterator[None]:
    """What learners elsewhere write below ``directory`` inside the context is here after it."""
    away = _one_per_other_node(learner_group, directory)
    for learner in away:
        ask_learner(learner_group, learner, partial(directory.mkdir, parents=True, exist_ok=True))
    try:
        yield
        for learner in away:
            for name, size in ask_learner(learner_group, learner, _files_below, directory):
                _fetch(learner_group, learner, directory / name, size)
    finally:
        _forget(learner_group, away, directory)


@contextmanager
def read_by_learners(learner_group: LearnerGroup, directory: Path) -> Iterator[None]:
    """What is below ``directory`` here is there for every learner inside the context."""
    away = _one_per_other_node(learner_group, directory)
    try:
        for learner in away:
            for name, _ in _files_below(directory):
                _send(learner_group, learner, directory / name)
        yield
    finally:
        _forget(learner_group, away, directory)


def _one_per_other_node(learner_group: LearnerGroup, directory: Path) -> list[Any]:
    """One learner of each node that does not see ``directory``."""
    learners = list(learner_group._workers or [])
    token = directory / f".seen-{uuid.uuid4().hex}"
    directory.mkdir(parents=True, exist_ok=True)
    token.touch()
    try:
        away = [learner for learner in learners if not ask_learner(learner_group, learner, token.exists)]
        by_node = {ask_learner(learner_group, learner, _node): learner for learner in away}
    finally:
        token.unlink()
    return list(by_node.values())


def _node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def _files_below(directory: Path) -> list[tuple[str, int]]:
    return [
        (str(path.relative_to(directory)), path.stat().st_size)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]


def _fetch(learner_group: LearnerGroup, learner: Any, path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for offset in range(0, size, CHUNK_BYTES):
            file.write(ask_learner(learner_group, learner, _read, path, offset))


def _send(learner_group: LearnerGroup, learner: Any, path: Path) -> None:
    for offset in range(0, max(1, path.stat().st_size), CHUNK_BYTES):
        ask_learner(learner_group, learner, _write, path, offset, _read(path, offset))


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def _write(path: Path, offset: int, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb" if offset == 0 else "r+b") as file:
        file.seek(offset)
        file.write(content)


def _forget(learner_group: LearnerGroup, learners: list[Any], directory: Path) -> None:
    for learner in learners:
        with suppress(LearnerError):  # One that died leaves its files; what it did before is the error to tell.
            ask_learner(learner_group, learner, shutil.rmtree, directory, True)


def save_learners(learner_group: LearnerGroup, directory: Path, config: LMGameConfig) -> None:
    """Write shards (``learners/``) and Hugging Face files (``hf/``; ``hf_last/`` for the last iterate if averaged).

    Beside them stands the ``adapter/`` of a policy that has one.
    """
    trained = config.trained_policies()
    exports = {WeightUse.EXPORT: False} | ({WeightUse.TRAINING: True} if config.run.averages else {})
    with written_by_learners(learner_group, directory):
        foreach_learner(learner_group, methodcaller("save_shard", directory / LEARNER_SHARDS))
        for policy in trained:
            for use, last in exports.items():
                target = hf_directory(directory, policy, trained, last=last)
                adapter = adapter_directory(directory, policy, trained, last=last)
                foreach_learner(learner_group, methodcaller("export_hf", target, policy, use, adapter))


def load_learners(learner_group: LearnerGroup, directory: Path) -> None:
    """Undo :func:`save_learners`."""
    shards = directory / LEARNER_SHARDS
    with read_by_learners(learner_group, shards):
        foreach_learner(learner_group, methodcaller("load_shard", shards))


SHAPE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
"""Fields of a model's ``config.json`` that say what its tensors are: with other heads the same ones compute something
else.
"""


def check_models(checkpoint: Path, config: LMGameConfig) -> None:
    """Refuse weights of another shape or tokenizer, and adapters of other numbers or in the place of whole weights.

    Tiny tokenizers are made from the games' texts, so other games can mean other tokens. Trained policies without
    Hugging Face files in the checkpoint are skipped. Raises: CheckpointError: names the policy and the difference.
    """
    trained = config.trained_policies()
    for policy in trained:
        saved, adapter = (of(checkpoint, policy, trained) for of in (hf_directory, adapter_directory))
        if saved.is_dir():
            _check_adapter(adapter, config, policy)
        if not any((saved / name).is_file() for name in TOKENIZER_FILES):
            continue
        options = config.language_model_of(policy)
        try:
            there = load_tokenizer(str(saved), options.model_copy(update={"tokenizer": None})).get_vocab()
        except Exception as error:  # A damaged file fails in many ways.
            raise CheckpointError(
                f"{saved}: the tokenizer of {policy!r} cannot be read: {first_line(error)}"
            ) from error
        here = load_tokenizer(model_directory(config.model_files[policy].directory()), options).get_vocab()
        if there != here:
            token = min(id_ for _, id_ in there.items() ^ here.items())
            texts = (next((text for text, id_ in of.items() if id_ == token), None) for of in (there, here))
            differ = "there token {} is {!r}, here it is {!r}".format(token, *texts)
            cure = f"to begin with its weights and its tokenizer, set language_model.model to {saved}"
            raise CheckpointError(f"{checkpoint}: policy {policy!r} has another tokenizer: {differ}; {cure}")
        _check_shape(saved, config, policy)


def _check_shape(saved: Path, config: LMGameConfig, policy: str) -> None:
    from transformers import AutoConfig

    trust = config.language_model_of(policy).trust_remote_code
    try:
        there = AutoConfig.from_pretrained(saved, trust_remote_code=trust)
    except Exception as error:  # A damaged file fails in many ways.
        raise CheckpointError(f"{saved}: the model of {policy!r} cannot be read: {first_line(error)}") from error
    here = AutoConfig.from_pretrained(model_directory(config.model_files[policy].directory()), trust_remote_code=trust)
    for name in SHAPE:
        had, has = getattr(there, name, None), getattr(here, name, None)
        if had != has:
            raise CheckpointError(f"{saved.parent}: the model of {policy!r} has {name} {had} there and {has} here")


def _check_adapter(saved: Path, config: LMGameConfig, policy: str) -> None:
    lora, there = config.language_model_of(policy).lora, (saved / CONFIG_FILE).is_file()
    if there != (lora is not None):
        kinds = {True: "adapters", False: "all weights"}
        raise CheckpointError(
            f"{saved.parent}: {policy} trains {kinds[there]} there and {kinds[not there]} here (language_model.lora); "
            "to begin with its weights, set language_model.model to the checkpoint's hf/"
        )
    if lora is None:
        return
    found = read_json(saved / CONFIG_FILE, MAX_JSON_BYTES)
    for name, own in IN_PEFT.items():
        if found.get(name) != (here := getattr(as_begun(lora), own)):
            option = f"{policy} has language_model.lora.{own}"
            raise CheckpointError(f"{saved}: {option} {found.get(name)!r} there and {here} here")
