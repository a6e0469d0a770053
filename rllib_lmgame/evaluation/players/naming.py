"""Players by a text, the same in every command.

==============================  ====================================================================================
``random``, ``solver``, ...     a scripted player by name (:mod:`rllib_lmgame.policies.scripted`)
``package.module:Class``        a scripted player of one's own
``DIR``, ``DIR:POLICY``         the policy of a checkpoint (or of the newest one of a trial's directory); several that
                                were trained for different seats take their own
``DIR:MEMBER``                  a member of its league
``hf:DIR_OR_ID``                a Hugging Face model as it is, or ``smollm2-135m``
``openai:MODEL@URL``            a model behind an OpenAI-compatible endpoint (``URL`` up to ``/v1``)
``openai:MODEL@URL#VARIABLE``   the same; its key stands in the environment variable
==============================  ====================================================================================

Each of them may be given a name: ``NAME=PLAYER``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.storage import expanded
from rllib_lmgame.base.text import is_writable
from rllib_lmgame.endpoints.address import ENDPOINT
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.policies.model.gguf_files import PRETRAINED, check_name
from rllib_lmgame.policies.scripted import FORMS, HUGGING_FACE, SCRIPTED_PLAYERS, make_scripted_player
from rllib_lmgame.rollouts.players import Player, Scripted

_NAMED = re.compile(r"([\w-][\w.-]*)=(.+)", re.DOTALL)
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w.]*")


def split_name(text: str) -> tuple[str | None, str]:
    """The name in ``NAME=PLAYER``, if there is one, and the player."""
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match else (None, text)


def without_names(texts: Iterable[str]) -> list[str]:
    return [split_name(text)[1] for text in texts]


def make_players(texts: Sequence[str], settings: PlayerSettings) -> dict[str, Player]:
    """The players by name; one without a name is called by its text.

    Raises: ConfigError: no such player, or a name twice; CheckpointError: missing or damaged.
    """
    players: dict[str, Player] = {}
    models = [text for text in without_names(texts) if text.startswith(HUGGING_FACE) or _directory(text)[0]]
    settings = replace(settings, models=max(1, len(models)))
    for text in texts:
        name = player_name(text, players, settings.flag)
        players[name] = make_player(name, split_name(text)[1], settings)
    return players


def player_name(text: str, taken: Container[str], flag: str) -> str:
    """What a player is called. Raises: ConfigError: the name is ``taken``, or UTF-8 cannot hold it."""
    named, source = split_name(text)
    name = named or source.rstrip("/")
    if not is_writable(name):
        raise ConfigError(flag, f"{name!r} is no name of a player: it must be text that UTF-8 holds; write NAME=...")
    if name in taken:
        raise ConfigError(flag, f"two players are called {name!r}; give one another name: NAME={source}")
    return name


def make_player(name: str, source: str, settings: PlayerSettings) -> Player:
    """The player of ``source``, a form above without a name.

    Raises: ConfigError: no such player; CheckpointError: missing or damaged.
    """
    if source in SCRIPTED_PLAYERS:
        return _scripted(name, source, settings)
    if source.startswith(HUGGING_FACE):
        from rllib_lmgame.evaluation.players.language_model import hugging_face_player

        return hugging_face_player(name, source, settings)
    if source.startswith(ENDPOINT):
        from rllib_lmgame.evaluation.players.endpoint import EndpointPlayer

        return EndpointPlayer(name, source, settings)
    directory, policy = _directory(source)
    if directory is not None:
        from rllib_lmgame.evaluation.players.language_model import checkpoint_player

        return checkpoint_player(name, source, directory, policy, settings)
    if source in PRETRAINED:
        raise ConfigError(settings.flag, f"{source} is a model: write hf:{source}")
    if _IMPORT_PATH.fullmatch(source):
        return _scripted(name, source, settings)
    if "/" in source or source.startswith((".", "~")):
        local = source.startswith(("/", ".", "~")) or source.count("/") > 1
        hint = "" if local else f"; a model of the Hugging Face hub is written hf:{source}"
        raise CheckpointError(f"no such directory: {source}{hint}")
    check_name(source, settings.flag)
    hint = did_you_mean(source, SCRIPTED_PLAYERS, f"players are {FORMS}")
    raise ConfigError(settings.flag, f"unknown player {source!r}; {hint}")


def _directory(source: str) -> tuple[str | None, str | None]:
    if expanded(source).is_dir():
        return source, None
    directory, _, policy = source.rpartition(":")
    if directory and policy and expanded(directory).is_dir():
        return directory, policy
    return None, None


def _scripted(name: str, source: str, settings: PlayerSettings) -> Player:
    make_scripted_player(source, settings.flag)
    return Scripted(name, source, limit_s=settings.time_limit_s)
