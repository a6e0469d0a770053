"""Oracles of one's own: a function or a language model answers the questions of a guessing game."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rllib_lmgame.base.plugin import import_path_or
from rllib_lmgame.base.registry import check_call
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.words.guessing.questions import all_words, shown
from rllib_lmgame.envs.support.asked_models import MODEL, AskedModel, is_model

TABLE = "table"
"""Value of the option ``oracle`` for the game's own table."""

UNKNOWN = "I don't know."
MAX_ANSWER = 200
"""Characters kept of an answer."""


ORACLE = """You answer the questions of a guessing game. What is meant is: {thing}. Answer the question truly, in one \
short sentence; a question of yes or no with "Yes.", "No." or "I don't know." Never say the name of what is meant."""


class OwnOracle:
    """Answers by a function ``f(thing, question) -> answer``, all three of them text.

    Guarantees: an answer is one short line of plain text, and it does not have the thing's name in it, but is withheld
    where it would.

    Args:
        path: Import path of the function, ``package.module:function``, or a language model
            (:mod:`~rllib_lmgame.envs.support.asked_models`).

    Raises: ConfigError: if there is no such function, or model, or the endpoint's address or key is none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._model = AskedModel(path, "env_config.oracle") if is_model(path) else None
        if self._model is not None:
            self._function: Callable[[str, str], str] = self._ask
            return
        function = import_path_or(path, "env_config.oracle", f"{TABLE}, {MODEL}")
        takes = "an oracle is called with the name of what is meant and the question"
        check_call(function, path, "env_config.oracle", takes, None, None)
        self._function = function

    def check_ready(self) -> str:
        """Ask a language model whether it is there; nothing of a function. Raises: ConfigError: it is not."""
        return "" if self._model is None else self._model.check()

    def _ask(self, thing: str, question: str) -> str:
        assert self._model is not None
        said = self._model.ask(ORACLE.format(thing=thing), question).strip()
        if not any(mark.isalnum() for mark in said):
            raise GameError(f"{self._model.name} gave no answer")
        return said

    def answer(self, thing: str, question: str, names: Iterable[str]) -> str:
        """The answer to ``question`` about ``thing``, or :data:`UNKNOWN` if it is empty or tells one of the ``names``.

        Raises: GameError: if the function does not return a text.
        """
        said = self._function(thing, shown(question))
        if not isinstance(said, str):
            raise GameError(
                f"the oracle {self._path!r} returned {type(said).__name__}; it must return its answer as text"
            )
        said = shown(said[:MAX_ANSWER])
        return said if said and not tells(said, names) else UNKNOWN


def own_oracle(option: str) -> OwnOracle | None:
    """The oracle the option names, or ``None`` for the table."""
    return None if option == TABLE else OwnOracle(option)


def tells(text: str, names: Iterable[str]) -> bool:
    """Whether one of the names stands in the text, word for word or run together."""
    words = all_words(text)
    joined = " " + " ".join(words) + " "
    together = "".join(words)
    return any(
        f" {' '.join(said)} " in joined or (len("".join(said)) > 4 and "".join(said) in together)
        for said in map(all_words, names)
    )
