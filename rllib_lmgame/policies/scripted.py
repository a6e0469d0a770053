"""Scripted players: policies that need no engine and no weights."""

from __future__ import annotations

import random
from typing import Protocol

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.plugin import import_path
from rllib_lmgame.base.registry import check_call, check_methods, made
from rllib_lmgame.endpoints.address import ENDPOINT, HUGGING_FACE
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.policies.options import LANGUAGE_MODEL


class ScriptedPlayer(Protocol):
    """A player that types its action; made once per player and episode.

    It may also have ``think(session, agent_id) -> str | None``, asked before ``act``: the reasoning that leads to the
    action. Supervised learning writes it into the reply where ``language_model.think`` is on.
    """

    def act(self, session: GameSession, agent_id: str, observation: Observation, rng: random.Random) -> str:
        """The action text of ``agent_id``. ``rng`` is seeded with the episode."""


class RandomPlayer:
    """Uniform over the legal actions; in others' games that list none, texts of the action space."""

    def act(self, session: GameSession, agent_id: str, observation: Observation, rng: random.Random) -> str:
        if not observation.legal_actions:
            text = session.random_action(agent_id, rng)
            if text is not None:
                return text
            raise ConfigError("", f"the random player needs legal actions, and {session.game_id} lists none")
        return rng.choice(observation.legal_actions)


class SolverPlayer:
    """The game's own solver; in a game of two that is its minimax player."""

    def act(self, session: GameSession, agent_id: str, observation: Observation, rng: random.Random) -> str:
        action = session.expert_action(agent_id)
        if action is None:
            raise ConfigError(
                "", f"{session.game_id} has no solver with these options; `random` plays games that list their actions"
            )
        return action

    def think(self, session: GameSession, agent_id: str) -> str | None:
        return session.expert_thought(agent_id)


SCRIPTED_PLAYERS: dict[str, type[ScriptedPlayer]] = {
    "random": RandomPlayer,
    "solver": SolverPlayer,
    "minimax": SolverPlayer,
}

MODEL_PREFIXES = (HUGGING_FACE, ENDPOINT)
"""Before the name of a model that is a player of a command, and none of a run."""

FORMS = (
    f"{', '.join(SCRIPTED_PLAYERS)}, package.module:Class, a checkpoint (DIR, DIR:POLICY, DIR:MEMBER of its "
    "league), hf:MODEL, or openai:MODEL@http://HOST:PORT/v1"
)


def make_scripted_player(name: str, key: str = "config.policies") -> ScriptedPlayer:
    """The scripted player ``name`` or ``package.module:Class``, set by ``key``. Raises: ConfigError: it is none."""
    if name in SCRIPTED_PLAYERS:
        return SCRIPTED_PLAYERS[name]()
    if name.startswith(MODEL_PREFIXES):
        elsewhere = "`rllib evaluate --against`, `rllib tournament` and `rllib play --players`"
        model = "; in a run a model is a policy: {trained: false, language_model: {model: ...}}"
        raise ConfigError(key, f"{name!r} plays in {elsewhere} only" + model * name.startswith(HUGGING_FACE))
    if ":" in name:
        player: ScriptedPlayer = made(import_path(name, key), name, key)
        check_methods(player, ScriptedPlayer, name, key)
        if think := getattr(player, "think", None):
            check_call(think, f"{name}.think", key, "it is called as (session, agent_id)", None, None)
        return player
    if name == LANGUAGE_MODEL:
        raise ConfigError(key, f"must be a scripted player, got {name!r}; known: {', '.join(SCRIPTED_PLAYERS)}")
    known = [LANGUAGE_MODEL, *SCRIPTED_PLAYERS]
    hint = did_you_mean(name, known, f"known: {', '.join(known)}")
    raise ConfigError(key, f"unknown player {name!r}; {hint}")
