"""The messages of OpenEnv's environment for TextArena, and what of them is told of a game."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from rllib_lmgame.servers.sessions import MOST_SEED

VERSION = "1.0.0"
"""Version of the protocol of OpenEnv 0.10."""

Text = Annotated[str, BeforeValidator(lambda said: said.encode(errors="replace") if isinstance(said, str) else said)]
Natural = Annotated[int, Field(strict=True, ge=0, le=MOST_SEED)]


class Message(BaseModel):
    model_config = ConfigDict(title="TextArenaMessage")
    sender_id: int
    content: str
    category: str


class Action(BaseModel):
    model_config = ConfigDict(title="TextArenaAction", extra="forbid")
    message: Text
    metadata: dict[str, Any] = {}


class Observation(BaseModel):
    model_config = ConfigDict(title="TextArenaObservation")
    prompt: str
    messages: list[Message] = []
    current_player_id: int = 0
    legal_players: list[int] = []
    info: dict[str, Any] = {}
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class State(BaseModel):
    model_config = ConfigDict(title="TextArenaState", extra="allow")
    env_id: str
    num_players: int
    episode_id: str | None = None
    step_count: int = 0
    max_turns: int | None = None
    turn: int = 0
    last_reward: float = 0.0
    last_info: dict[str, Any] = {}
    raw_state: dict[str, Any] = {}


class Reset(BaseModel):
    """What ``reset`` is asked for. Other keys are let be: clients send those of their environments."""

    model_config = ConfigDict(extra="ignore")
    seed: Natural | None = None
    index: Natural | None = None
    episode_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    split: str | None = None
    seats: list[str] | dict[str, str] | None = None


_FORMS = (("action", Action), ("observation", Observation), ("reset_observation", Observation), ("state", State))
SCHEMA = {name: form.model_json_schema() for name, form in _FORMS}

_METHODS = {"/health": "get", "/metadata": "get", "/schema": "get", "/mcp": "post"}


def openapi(name: str) -> dict[str, Any]:
    """The OpenAPI document of a game called ``name``."""
    answers = {"responses": {"200": {"description": "JSON"}}}
    paths = {path: {method: answers} for path, method in _METHODS.items()}
    return {"openapi": "3.1.0", "info": {"title": name, "version": VERSION}, "paths": paths}
