"""Whether a checkpoint suits a run that restores it: its models, value functions and league."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rllib_lmgame.algorithms.checkpoints.manifest import (
    LEARNER_SHARDS,
    MAX_MANIFEST_BYTES,
    adapter_directory,
    hf_directory,
    read_json,
)
from rllib_lmgame.algorithms.facts import PolicyFacts
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.json_files import read_mapping
from rllib_lmgame.base.text import first_line
from rllib_lmgame.league.files import DIRECTORY, LIST_FILE
from rllib_lmgame.league.league import policies_gone
from rllib_lmgame.learners.weights import STATE_FILE, critic_difference
from rllib_lmgame.policies.model.adapters import CONFIG_FILE, IN_PEFT, as_begun, other_modules
from rllib_lmgame.policies.model.files import (
    MAX_JSON_BYTES,
    TOKENIZER_FILES,
    load_tokenizer,
    model_directory,
    tokenizer_source,
)

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig

SHAPE = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
"""Fields of a model's ``config.json`` on which the shapes of its tensors depend."""


def check_models(checkpoint: Path, config: LMGameConfig, *, local_files_only: bool = False) -> None:
    """Refuse weights of another shape or tokenizer, or where only one side has a value function.

    Tiny tokenizers are made from the games' texts, so other games can mean other tokens.

    Args:
        checkpoint: Trained policies without Hugging Face files in it are skipped.
        config: Of the run, with its ``model_files``.
        local_files_only: Skip policies whose model or tokenizer is not on this machine.

    Raises: CheckpointError: names the policy and the first difference.
    """
    trained = config.trained_policies()
    with_critic = _with_critic(checkpoint)
    for policy in trained:
        there = with_critic.get(policy)
        if there is not None and there != PolicyFacts(config, policy).needs_critic:
            raise CheckpointError(critic_difference(str(checkpoint), policy, there=there))
        saved, adapter = (of(checkpoint, policy, trained) for of in (hf_directory, adapter_directory))
        if saved.is_dir():
            _check_adapter(checkpoint, adapter, config, policy)
        if local_files_only and not _is_here(config, policy):
            continue
        if any((saved / name).is_file() for name in TOKENIZER_FILES):
            problem = _difference(saved, adapter, config, policy)
            if problem:
                raise CheckpointError(
                    f"{checkpoint} does not suit this run: policy {policy!r} {problem}. To begin with its weights "
                    f"and its tokenizer, set language_model.model to {saved}"
                )


def check_league(checkpoint: Path, config: LMGameConfig) -> None:
    """Refuse a league with members or results of a policy that does not learn in this run.

    Nothing is checked if the checkpoint or the run has no league. Raises: CheckpointError: names the policies.
    """
    file = checkpoint / DIRECTORY / LIST_FILE
    if config.run.league is None or not file.is_file():
        return
    try:
        gone = policies_gone(read_json(file, MAX_MANIFEST_BYTES), config.trained_policies())
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{file} is damaged: it holds no league") from None
    if gone:
        named = ", ".join(repr(policy) for policy in gone)
        raise CheckpointError(
            f"{checkpoint} does not suit this run: its league has members or results of {named}, and no policy of that "
            "name learns here. Keep it in config.policies; to begin another league with weights of this one, set "
            "language_model.model to a policy's files in the checkpoint and restore nothing"
        )


def _with_critic(checkpoint: Path) -> dict[str, bool]:
    """Whether policies have a value function in a checkpoint, as far as its learners say so."""
    try:
        counters = read_mapping(checkpoint / LEARNER_SHARDS / STATE_FILE, MAX_JSON_BYTES)
    except (OSError, ValueError):  # Damaged: who loads it says so.
        return {}
    policies = counters.get("modules")
    with_critic = counters.get("critics")
    if not isinstance(policies, list) or not isinstance(with_critic, list | dict):
        return {}
    return {str(policy): policy in with_critic for policy in policies}


def _check_adapter(checkpoint: Path, saved: Path, config: LMGameConfig, policy: str) -> None:
    """Refuse adapters where the run trains all weights, or the other way round, and those of other numbers."""
    lora, there = config.language_model_of(policy).lora, (saved / CONFIG_FILE).is_file()
    if there != (lora is not None):
        kinds = {True: "adapters", False: "all weights"}
        raise CheckpointError(
            f"{checkpoint}: {policy} trains {kinds[there]} there and {kinds[not there]} here (language_model.lora); "
            "to begin with its weights, set language_model.model to the checkpoint's hf/"
        )
    if lora is None:
        return
    begun = as_begun(lora)
    found = read_json(saved / CONFIG_FILE, MAX_JSON_BYTES)
    for name, own in IN_PEFT.items():
        if found.get(name) != getattr(begun, own):
            raise CheckpointError(
                f"{checkpoint}: {policy} has language_model.lora.{own} {found.get(name)!r} there and "
                f"{getattr(begun, own)} here"
            )


def _is_here(config: LMGameConfig, policy: str) -> bool:
    """Whether a policy's model and tokenizer are directories."""
    model = model_directory(config.model_files[policy].directory())
    return all(Path(source).is_dir() for source in (model, tokenizer_source(config.language_model_of(policy), model)))


def _difference(saved: Path, adapter: Path, config: LMGameConfig, policy: str) -> str | None:
    """What differs between a policy in the checkpoint and in the run. Raises: CheckpointError: an adapter's damage."""
    from transformers import AutoConfig

    options = config.language_model_of(policy)
    directory = model_directory(config.model_files[policy].directory())
    try:
        there = load_tokenizer(str(saved), options.model_copy(update={"tokenizer": None})).get_vocab()
        before = AutoConfig.from_pretrained(saved, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # A damaged file fails in many ways.
        return f"cannot be read from {saved}: {first_line(error)}"
    here = load_tokenizer(directory, options).get_vocab()
    if there != here:
        token = min(id_ for _, id_ in there.items() ^ here.items())
        texts = (next((text for text, id_ in of.items() if id_ == token), None) for of in (there, here))
        return "has another tokenizer: there token {} is {!r}, here it is {!r}".format(token, *texts)
    after = AutoConfig.from_pretrained(directory, trust_remote_code=options.trust_remote_code)
    for name in SHAPE:
        had, has = getattr(before, name, None), getattr(after, name, None)
        if had != has:
            return f"has {name} {had} there, {has} here"
    if options.lora is None:
        return None
    try:
        return other_modules(adapter, options.lora, after, trust_remote_code=options.trust_remote_code)
    except ConfigError as error:
        raise CheckpointError(error.message) from error
