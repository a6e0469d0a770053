"""A judge or oracle that is a Hugging Face model in the process of the game.

1. A model is loaded once a process, whatever games ask it, from data alone: safetensors, and no code of its own.
2. It answers one question at a time. What a game waits for its turn is no time of the game's, and has a limit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import WaitedTooLong, waiting
from rllib_lmgame.base.text import first_line
from rllib_lmgame.endpoints.address import HUGGING_FACE
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.support.asked_models import TIME_LIMIT_S, most_s
from rllib_lmgame.policies.model.files import check_model, model_directory

MAX_TOKENS = 256
"""Of one answer; a processor writes few a second."""

TURN_LIMIT_S = 600.0
"""Of the wait for the answers to others' questions."""

_turns = threading.Lock()


class HFJudge:
    """The model of ``hf:DIR_OR_ID``, asked greedily on the CPU.

    Args:
        source: ``hf:`` and a Hugging Face directory or id, a checkpoint of this package, a ``.gguf`` file, or a name
            of :data:`~rllib_lmgame.policies.model.pretrained.PRETRAINED`.
        key: Option that names it.

    Raises:
        ConfigError: there is no such model, or not all of it.
    """

    def __init__(self, source: str, key: str) -> None:
        self.name = source.removeprefix(HUGGING_FACE)
        if not self.name:
            raise ConfigError(key, f"{source!r} names no model; write hf:DIR or hf:ORGANISATION/MODEL")
        self._key = key
        check_model(self.name, key)
        self._directory = model_directory(self.name, key)

    def check(self) -> str:
        """What it is, in a few words. Raises: ConfigError: its tokenizer cannot be read, or has no chat template."""
        try:
            _tokenizer(self._directory)
        except ValueError as error:
            raise ConfigError(self._key, str(error)) from error
        return f"asks {self.name}, loaded by each process that plays"

    def answer(self, instructions: str, question: str) -> str:
        """Its reply.

        Raises:
            GameError: it cannot be loaded or asked, the question is too long for it, or it does not end in time.
            WaitedTooLong: the answers to others' questions took all the time.
        """
        with _turn(self.name):
            try:
                with waiting():
                    model = _loaded(self._directory)
                return model.answer(instructions, question)
            except ValueError as error:
                raise GameError(f"no answer of {self.name}: {error}") from error


@contextmanager
def _turn(name: str) -> Iterator[None]:
    """While it is this thread's turn to ask."""
    with waiting():
        if not _turns.acquire(timeout=TURN_LIMIT_S):
            raise WaitedTooLong(f"{name} had other questions to answer for {TURN_LIMIT_S:g} s")
    try:
        yield
    finally:
        _turns.release()


@dataclass(frozen=True)
class _Loaded:
    """A model and its tokenizer, by Transformers."""

    model: Any
    tokenizer: Any

    def answer(self, instructions: str, question: str) -> str:
        """Raises: ValueError: there is none, and why."""
        import torch

        asked = self._written(instructions, question)
        tokens = asked["input_ids"].shape[1]
        longest = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)  # Some have no limit.
        room = MAX_TOKENS if longest is None else min(MAX_TOKENS, longest - tokens)
        if room < 1:
            raise ValueError(f"the question has {tokens} tokens, more than the model takes")
        settings = self.model.generation_config
        ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
        step_s = most_s()
        limit_s = TIME_LIMIT_S if step_s is None else min(TIME_LIMIT_S, step_s)
        ends = sorted({end for end in (*ends, self.tokenizer.eos_token_id) if end is not None})
        with torch.inference_mode():
            said = self.model.generate(
                **asked,
                do_sample=False,
                num_beams=1,
                max_new_tokens=room,
                max_time=limit_s,
                eos_token_id=ends or None,
                pad_token_id=ends[0] if ends else 0,
            )[0, tokens:]
        if len(said) < room and said[-1].item() not in ends:
            raise ValueError(f"it did not end within {limit_s:.3g} s")
        return str(self.tokenizer.decode(said, skip_special_tokens=True))

    def _written(self, instructions: str, question: str) -> Any:
        """Both as the chat template writes them; in one message where it knows no system message."""
        user = {"role": "user", "content": f"{instructions}\n\n{question}"}
        chats = ([{"role": "system", "content": instructions}, {**user, "content": question}], [user])
        for chat in chats:
            try:
                return self.tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
                )
            except Exception as error:  # Templates refuse what they do not know in ways of their own.
                problem = first_line(error)
        raise ValueError(f"its chat template fails: {problem}")


@cache
def _loaded(directory: str) -> _Loaded:
    """Raises: ValueError: it cannot be loaded, and why."""
    from rllib_lmgame.policies.model.loading import IncompleteModelError, whole_model

    tokenizer = _tokenizer(directory)
    try:
        model = whole_model(directory, dtype="auto", trust_remote_code=False)
    except IncompleteModelError as error:
        raise ValueError(f"no model that can be loaded at {directory!r}: it {error}") from error
    except Exception as error:  # A damaged file fails in many ways.
        raise ValueError(f"no model that can be loaded at {directory!r}: {first_line(error)}") from error
    for drawn in ("temperature", "top_p", "top_k"):  # Of no use without draws, and warned of.
        setattr(model.generation_config, drawn, None)
    return _Loaded(model.eval(), tokenizer)


def _tokenizer(directory: str) -> Any:
    """Raises: ValueError: there is none that writes chats, and why."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # A damaged file fails in many ways.
        raise ValueError(f"no tokenizer at {directory!r}: {first_line(error)}") from error
    if not tokenizer.chat_template:
        raise ValueError(f"{directory} has no chat template; a model is needed that was trained to follow instructions")
    return tokenizer
