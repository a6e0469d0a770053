"""The models that a run begins with: loaded, or a tiny one made of the games' own texts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from rllib_lmgame.algorithms.config import LMGameConfig
from rllib_lmgame.algorithms.scheduled import scheduled_games
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.datasets.preferences import PreferenceDataset
from rllib_lmgame.datasets.sft import Conversation, read_all, texts_of
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.model.files import ModelFiles, model_directory
from rllib_lmgame.policies.model.gguf_files import PRETRAINED
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import TINY_MODEL
from rllib_lmgame.rollouts.game_calls import GameCalls, abandon, open_session, run_to_end
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed

CORPUS_VARIANTS = 16
"""Values of each schedule of a game with which a tiny model's tokenizer reads texts: each is played 64 times."""

CORPUS_CONVERSATIONS = 1000
"""Conversations of files that it reads, at most."""


def prepare_models(config: LMGameConfig) -> dict[str, ModelFiles]:
    """Where each policy's model files are; builds tiny models. Raises: ConfigError: if one cannot be built."""
    return {policy: initial_model(config, policy) for policy in config.language_model_policies()}


def initial_model(config: LMGameConfig, policy: str) -> ModelFiles:
    """Files of a policy before training; see :func:`prepare_models`."""

    options = config.language_model_of(policy)
    if options.model != TINY_MODEL:
        directory = model_directory(options.model, config.run.policy(policy).place("language_model.model"))
        return ModelFiles(directory, made_of=options.model if options.model in PRETRAINED else None)
    with tempfile.TemporaryDirectory() as scratch:
        build_tiny_model(scratch, tiny_corpus(config), {"seed": config.seed or 0, **options.tiny})
        return ModelFiles.ship(scratch)


def corpus_games(config: LMGameConfig) -> tuple[GameConfig, ...]:
    return scheduled_games(config, CORPUS_VARIANTS)


def tiny_corpus(config: LMGameConfig) -> list[str]:
    """Texts of the training games, or of the conversations that are learnt from without any, for a tiny model's
    tokenizer. Raises: ConfigError: if a game cannot be played, or a file not be read.
    """

    corpus: list[str] = []
    for game in corpus_games(config):
        corpus += _texts_of(game, config.run.text_rollouts.env_step_timeout_s)
    if not corpus:
        corpus = texts_of(_conversations(config), CORPUS_CONVERSATIONS)
    note = config.run.language_model.turn_suffix
    return corpus + ([note.format(turns_left=n) for n in range(10)] * 2 if note else [])


def _conversations(config: LMGameConfig) -> Iterable[Conversation]:
    stage, pairs = config.run.supervised_stage, config.run.dpo
    if stage is not None and stage.data is not None:
        return read_all(stage.data)
    if pairs is not None and pairs.data is not None:
        return PreferenceDataset(pairs, config.row_limits()).conversations
    return ()


def _texts_of(game: GameConfig, timeout_s: float) -> list[str]:
    try:
        session = run_to_end(open_session(game, timeout_s))
        calls = GameCalls(session.game_id, session.trusted, timeout_s)

        def call(what: str, function: Callable[..., Any], *args: Any) -> Any:
            return run_to_end(calls(what, function, *args))

        def goes_on(failure: EpisodeFailed) -> bool:
            return failure.reason != StopReason.TIMEOUT  # What hangs is in the game still.

        try:
            if session.trusted:
                return game_corpus(session, seed=0)
            return game_corpus(session, seed=0, call=call, tolerated=EpisodeFailed, goes_on=goes_on)
        finally:
            abandon(session)
    except (EpisodeFailed, GameError) as error:
        raise ConfigError("", f"no episode could be played for the tiny model's tokenizer: {error}") from None
