"""What OpenEnv's clients are told of a game: its schemas, those of OpenEnv's environment for TextArena."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

VERSION = "1.0.0"
"""Of the protocol, as OpenEnv 0.10 says it."""

_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_OBJECT: Mapping[str, Any] = {"type": "object", "additionalProperties": True}


def _object(title: str, required: Iterable[str] = (), extra: bool = False, **properties: Any) -> dict[str, Any]:
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": extra,
    }


_MESSAGE = _object(
    "TextArenaMessage", ("sender_id", "content", "category"), sender_id=_NUMBER, content=_TEXT, category=_TEXT
)
ACTION = _object("TextArenaAction", ("message",), metadata=_OBJECT, message=_TEXT)
OBSERVATION = _object(
    "TextArenaObservation",
    ("prompt",),
    done=_FLAG,
    reward={"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
    metadata=_OBJECT,
    prompt=_TEXT,
    messages={"type": "array", "items": _MESSAGE},
    current_player_id=_NUMBER,
    legal_players={"type": "array", "items": _NUMBER},
    info=_OBJECT,
)
STATE = _object(
    "TextArenaState",
    ("env_id", "num_players"),
    extra=True,
    episode_id={"anyOf": [_TEXT, {"type": "null"}], "default": None},
    step_count=_NUMBER,
    env_id=_TEXT,
    num_players=_NUMBER,
    max_turns={"anyOf": [_NUMBER, {"type": "null"}], "default": None},
    turn=_NUMBER,
    last_reward={"type": "number"},
    last_info=_OBJECT,
    raw_state=_OBJECT,
)
_RESET = _object(
    "ResetRequest",
    extra=True,
    seed={"type": "integer", "minimum": 0},
    episode_id={"type": "string", "maxLength": 255},
    split=_TEXT,
    index={"type": "integer", "minimum": 0},
    seats={"anyOf": [{"type": "array", "items": _TEXT}, {"type": "object", "additionalProperties": _TEXT}]},
)
_STEP = _object("StepRequest", ("action",), extra=True, action=ACTION, episode_id=_TEXT)
_ANSWER = _object("StepResponse", ("observation",), observation=OBSERVATION, reward=_OBJECT, done=_FLAG)

SCHEMA = {"action": ACTION, "observation": OBSERVATION, "reset_observation": OBSERVATION, "state": STATE}


def _operation(summary: str, body: Mapping[str, Any] | None = None, answer: Mapping[str, Any] = _OBJECT) -> Any:
    said: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "Done", "content": {"application/json": {"schema": answer}}}},
    }
    if body is not None:
        said["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return said


def openapi(name: str) -> dict[str, Any]:
    """The OpenAPI document of a game called ``name``."""
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": VERSION},
        "paths": {
            "/health": {"get": _operation("Whether the server is well")},
            "/metadata": {"get": _operation("Name and description")},
            "/schema": {"get": _operation("Schemas of actions, observations and states")},
            "/state": {"get": _operation("State of an episode", answer=STATE)},
            "/reset": {"post": _operation("Begin an episode", _RESET, _ANSWER)},
            "/step": {"post": _operation("Reply", _STEP, _ANSWER)},
            "/mcp": {"post": _operation("JSON-RPC; games have no tools", _OBJECT)},
            f"/{name}/splits": {"get": _operation("Splits of levels", answer={"type": "array"})},
            f"/{name}/tasks": {"post": _operation("Levels of a split", _OBJECT)},
            f"/{name}/num_tasks": {"post": _operation("How many levels a split has", _OBJECT)},
            f"/{name}/task": {"post": _operation("A level of a split", _OBJECT)},
            f"/{name}/task_range": {"post": _operation("Some levels of a split", _OBJECT)},
        },
    }
