"""Language models in this process: the Transformers engine, one batch for all games a model is in."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from rllib_lmgame.errors import ConfigError
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.inference.serving.client import LocalEngineClient
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.players import LanguageModel, engine_replies
from rllib_lmgame.rollouts.seats import EngineReplies
from rllib_lmgame.settings.schema import as_mapping
from rllib_lmgame.settings.sections.inference import InferenceOptions
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions
from rllib_lmgame.settings.sections.text_rollouts import TextRolloutOptions
from rllib_lmgame.text import first_line
from rllib_lmgame.threads import AUTO

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine


def local_engine(
    directory: str, inference: InferenceOptions, model: LanguageModelOptions, *, seed: int, at_once: int
) -> TransformersEngine:
    """An engine in this process, not started yet.

    Args:
        directory: Hugging Face directory or hub id.
        inference: Whether it has a GPU, its numerics and its threads (``auto``: one, since the models of a process
            play at the same time); what else stands there is meant for the engines of training.
        model: Length of its context, and whether its code may run.
        seed: Of what it draws.
        at_once: Replies written at the same time, at most.
    """
    from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine

    options = dataclasses.replace(
        inference,
        engine="transformers",
        tensor_parallel_size=1,
        max_num_seqs=at_once,
        num_threads=1 if inference.num_threads == AUTO else inference.num_threads,
        engine_kwargs={},
    )
    return TransformersEngine(
        directory,
        options,
        context_length=model.context_length,
        seed=seed,
        trust_remote_code=model.trust_remote_code,
    )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, directory: str, options: LanguageModelOptions) -> None:
    """Refuse a tokenizer that belongs to a model with more tokens.

    Args:
        tokenizer: The tokenizer; tokens that were added to its vocabulary may be unknown to the model, some are by
            design.
        directory: Of the model.
        options: Which tokenizer was asked for, and whether the model's code may run.

    Raises:
        ConfigError: naming both, or the model whose configuration cannot be read.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=options.trust_remote_code)
        known = config.get_text_config().vocab_size
    except Exception as error:  # an architecture that this version does not know, or a damaged file
        raise ConfigError(
            "config.language_model.model", f"no model that can be read at {directory!r}: {first_line(error)}"
        ) from error
    if tokenizer.vocab_size > known:
        message = f"the tokenizer of {options.tokenizer or directory} has {tokenizer.vocab_size} tokens, the model in"
        raise ConfigError("config.language_model.tokenizer", f"{message} {directory} knows {known}")


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """How a model is talked to and sampled from: three sections of a configuration."""

    language_model: LanguageModelOptions
    inference: InferenceOptions
    text_rollouts: TextRolloutOptions


class LocalModel(LanguageModel):
    """A language model in this process. Its weights are loaded when it is entered.

    Args:
        name, source: See :class:`~rllib_lmgame.rollouts.players.Player`.
        directory: Hugging Face directory or hub id.
        options: How it is talked to.
        settings: Temperature, seed, and how many games it is in at once.

    Raises:
        ConfigError: if it has no tokenizer, or its chat template cannot be used.
    """

    def __init__(self, name: str, source: str, directory: str, options: ModelOptions, settings: PlayerSettings) -> None:
        try:
            tokenizer = load_tokenizer(directory, options.language_model)
            check_vocabulary(tokenizer, directory, options.language_model)
            chat = ChatFormat(tokenizer, options.language_model)
        except ConfigError as error:
            raise ConfigError(error.path, f"player {name!r}: {error.message}") from error
        super().__init__(name, source, chat, self._sampled, options.text_rollouts)
        self.directory = directory
        self.options = options
        self.settings = settings
        self._engine: TransformersEngine | None = None

    async def __aenter__(self) -> Self:
        options, settings = self.options, self.settings
        self._engine = local_engine(
            self.directory,
            options.inference,
            options.language_model,
            seed=settings.seed,
            at_once=settings.at_once,
        )
        try:
            await self._engine.start()
        except Exception as error:
            await self._engine.shutdown()
            raise ConfigError("", f"player {self.name!r}: {self.directory}: {first_line(error)}") from error
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._engine is not None:
            await self._engine.shutdown()

    def _sampled(self, plan: EpisodePlan, seed: int) -> EngineReplies:
        return engine_replies(
            partial(LocalEngineClient(self._engine).generate, key=plan.episode_id),
            self.options.inference,
            self.options.text_rollouts,
            temperature=self.settings.temperature,
            seeded=True,
        )

    def identity(self) -> dict[str, Any]:
        """See :class:`Player`: the text, and how it is talked to and sampled from."""
        inference = self.options.inference
        return {
            **super().identity(),
            "temperature": self.settings.temperature,
            "language_model": as_mapping(self.options.language_model),
            "sampling": [inference.temperature, inference.top_p, inference.top_k],
            "legal_moves_only": self.options.text_rollouts.legal_moves_only,
        }
