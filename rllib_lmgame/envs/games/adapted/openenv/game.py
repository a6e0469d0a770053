"""An environment on a server of OpenEnv."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError, InvalidAction, TextGameOptions
from rllib_lmgame.envs.games.adapted.on_server import CHECK_S, TOKEN, read_token
from rllib_lmgame.envs.games.adapted.openenv.connection import Connection
from rllib_lmgame.envs.support.addresses import check_address
from rllib_lmgame.envs.support.replies import WholeReplyGame

SEEDS, TASKS = "seeds", "tasks"
_OF_THE_LEVEL = ("seed", "split", "index", "episode_id")
_KINDS: Mapping[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}


class OpenEnvOptions(TextGameOptions):
    """``env_config`` of environments on servers of OpenEnv."""

    max_turns: int = option(100, "Replies per episode; the server may end it before.", ge=1)
    invalid_action_penalty: float = option(0.0, "Reward of a reply that is no action of the environment.", le=0)
    max_invalid_actions: int | None = option(
        None, "Such replies in a row that end the episode; null never ends it.", ge=1
    )
    token_variable: str | None = option(None, TOKEN)
    rules: str = option("", "What players are told, beside what the environment shows.")
    success_above: float = option(
        0.0, "Where the environment gives no `info.success`: an episode is a success if its return is above this."
    )
    timeout_s: float = option(600.0, "Longest time for one message; then the episode is dropped.", gt=0, le=86_400)
    retries: int = option(10, "Times a session is asked for again of a server that is full or not there.", le=100)
    url: str | None = option(None, "Where the environment is; `openenv:URL` says it: `http://HOST:PORT`.")
    reset: dict[str, Any] = option({}, "What `reset` is asked for beside the level: `{seats: [remote, minimax]}`.")
    levels: str = option(
        SEEDS,
        "`seeds`: a level is the seed of `reset`, and belongs to a split by its hash. `tasks`: it is a task of the "
        "server's own splits (`split` and `index` of `reset`).",
        choices=(SEEDS, TASKS),
    )
    num_tasks: int = option(512, "With `tasks`: how many a split has.", ge=1, le=2**20)


class OpenEnv(WholeReplyGame):
    """An environment on a server that speaks OpenEnv's protocol, which runs beside this package.

    Observation: what the environment shows that is new: its messages, its only text, or its fields.
    Action: the text of the environment's one required field; where it has several, a JSON object.
    Reward: the environment's.
    Horizon: the environment's, and `max_turns`.
    Levels: seeds, or tasks of the server (option `levels`).
    """

    solver_wins = False
    Options: ClassVar[type[TextGameOptions]] = OpenEnvOptions
    options: OpenEnvOptions
    slow_calls = True  # the server is a process of its own
    most_levels: int = 2**31 - 1

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        if chosen.url is None:
            raise ConfigError("env_config.url", "is missing; write openenv:http://HOST:PORT as the game")
        url = check_address(chosen.url, "env_config.url", "env_config.token_variable")
        self.connection = Connection(url, read_token(chosen.token_variable), chosen.timeout_s, chosen.retries)
        for key in _OF_THE_LEVEL:
            if key in chosen.reset:
                raise ConfigError(f"env_config.reset.{key}", "is the level's; leave it out")
        self._place: int | None = None
        self._seen = ""
        self._legal: tuple[str, ...] = ()
        self._over = self._cut = False
        self._won: bool | None = None
        self._return = 0.0
        self._form: _ActionForm | None = None
        self._before = ""
        if chosen.levels == TASKS:
            self.most_levels = chosen.num_tasks

    @property
    def rules(self) -> str:
        return self.options.rules

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the level of ``seed``."""
        self._place = seed
        return super().reset(seed=seed, options=options)

    def levels(self, rng: random.Random) -> Iterator[int]:
        if self._place is not None:
            yield self._place % self.most_levels
        while True:
            yield rng.randrange(self.most_levels)

    def board(self) -> str:
        return self._seen

    def legal_actions(self) -> tuple[str, ...]:
        """Those that ``info.legal_actions`` lists, if it is there, as games of this package have it."""
        return self._legal

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, reward, terminated, truncated, info = super().step(action)
        cut = terminated and self._over and self._cut
        return text, reward, terminated and not cut, truncated or cut, info

    @property
    def success(self) -> bool:
        """What ``info.success`` says, else a return above ``success_above`` at the end."""
        if self._won is not None:
            return self._won
        return self._over and self._return > self.options.success_above

    @property
    def finished(self) -> bool:
        return self._over

    def check_ready(self) -> str:
        """Ask the server whether it is there, and begin and end a session.

        Returns: What was found, in a few words.
        Raises: ConfigError: it is not there, or begins none.
        """
        patient, url = self.connection, self.connection.url
        timeout_s = min(CHECK_S, self.options.timeout_s)
        self.connection = Connection(url, read_token(self.options.token_variable), timeout_s, 0)
        try:
            self.reset(seed=0)
        except (GameError, WaitedTooLong) as error:
            raise ConfigError("env_config.url", f"no session can be begun: {error}") from None
        finally:
            self.connection.close()
            self.connection = patient
        return f"answers at {url} and begins sessions"

    def level_key(self, level: int) -> str:
        split = f" {self.options.split}" if self.options.levels == TASKS else ""
        return f"openenv{split} {level}"  # No address: a server that moves has the same levels to test.

    def split_of_level(self, digest: str, level: int) -> str:
        by_server = self.options.levels == TASKS
        return self.options.split if by_server else super().split_of_level(digest, level)

    def start(self, level: int) -> None:
        if self._form is None:
            self._form = _ActionForm.read(self.connection.get("/schema"), self.connection.url)
        of_tasks = {"split": self.options.split, "index": level}
        which: Mapping[str, Any] = of_tasks if self.options.levels == TASKS else {"seed": level}
        self._before = ""
        self._take(self.connection.reset({**self.options.reset, **which}))
        self._return = 0.0
        if self._over:
            raise GameError(f"{self.connection.url}: the episode is over before it begins")
        if self._form.said:
            self._seen = f"{self._seen}\n\n{self._form.said}"

    def read_move(self, text: str) -> str:
        assert self._form is not None
        try:
            return json.dumps(self._form.action(text), allow_nan=False)
        except ValueError:
            raise InvalidAction("numbers must be finite.") from None

    def play_move(self, move: str) -> float:
        return self._take(self.connection.step(json.loads(move)))

    def close(self) -> None:
        """End the session."""
        self.connection.close()

    def _take(self, answer: Mapping[str, Any]) -> float:
        """Keep what an answer shows; its reward. Raises: GameError: it cannot be."""
        observation = answer["observation"]
        info = observation.get("info") if isinstance(observation, Mapping) else None
        info = info if isinstance(info, Mapping) else {}
        reward, done, where = answer.get("reward"), answer.get("done", False), self.connection.url
        reward = 0.0 if reward is None else reward
        if not isinstance(reward, int | float) or not abs(reward) <= sys.float_info.max:
            raise GameError(f"{where}: the reward is {shown(reward)}, which is no finite number")
        if not isinstance(done, bool):
            raise GameError(f"{where}: `done` is {shown(done)}; it must be true or false")
        self._return += float(reward)
        self._over = done
        listed, won = info.get("legal_actions"), info.get("success")
        self._legal = tuple(listed) if isinstance(listed, list) and all(isinstance(a, str) for a in listed) else ()
        self._won = won if isinstance(won, bool) and done else None
        self._cut = done and info.get("truncated") is True
        whole = _text_of(observation)
        new = info.get("observation")
        if not self._before or not isinstance(new, str):
            new = whole.removeprefix(self._before).lstrip("\n") if self._before else whole
        self._seen, self._before = new, whole
        return float(reward)


def _text_of(observation: Any) -> str:
    """An observation as text: the contents of its messages, its only text, or its fields, a line each."""
    if not isinstance(observation, Mapping):
        return observation if isinstance(observation, str) else json.dumps(observation)
    messages = observation.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(each, Mapping) for each in messages):
        contents = [each.get("content") for each in messages]
        return "\n".join(text for text in contents if isinstance(text, str))
    fields = {key: value for key, value in observation.items() if key not in ("done", "reward", "metadata")}
    fields = {key: value for key, value in fields.items() if value not in (None, "", [], {})}
    if len(fields) == 1:
        (only,) = fields.values()
        return only if isinstance(only, str) else json.dumps(only)
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in fields.items()
    )


@dataclass(frozen=True)
class _ActionForm:
    """How a reply becomes an action.

    Attributes:
        fields: Schemas of the fields, by name.
        needed: Those that must be there.
        only: The field that the reply is the value of; ``None``: the reply is a JSON object.
    """

    fields: Mapping[str, Any]
    needed: tuple[str, ...]
    only: str | None

    @classmethod
    def read(cls, schema: Any, url: str) -> _ActionForm:
        """That of the answer to ``GET /schema``. Raises: GameError: it has no action."""
        action = schema.get("action") if isinstance(schema, Mapping) else None
        fields = action.get("properties") if isinstance(action, Mapping) else None
        if not isinstance(action, Mapping) or not isinstance(fields, Mapping):
            raise GameError(f"{url}/schema tells no form of an action: {shown(schema, 200)}")
        own = {str(key): value for key, value in fields.items() if key != "metadata"}
        listed = action.get("required")
        needed = tuple(key for key in own if isinstance(listed, list) and key in listed)
        candidates = needed or tuple(own)
        only = candidates[0] if len(candidates) == 1 else None
        kind = own[only].get("type") if only is not None and isinstance(own[only], Mapping) else None
        plain = isinstance(kind, str) and kind in _KINDS
        return cls(own, needed, only if plain else None)

    @property
    def said(self) -> str:
        """What a player is told of it, where a reply is more than a text."""
        if self.only is not None:
            return ""
        return f"Reply with a JSON object: {json.dumps({'properties': self.fields, 'required': self.needed})}"

    def action(self, text: str) -> dict[str, Any]:
        """The action that a reply says. Raises: InvalidAction: it says none."""
        if self.only is not None:
            return {self.only: self._value(self.only, text)}
        try:
            found = json_files.parse(text)
        except ValueError:
            raise InvalidAction("the reply must be a JSON object.") from None
        if not isinstance(found, dict):
            raise InvalidAction("the reply must be a JSON object.")
        unknown = [key for key in found if key not in self.fields]
        missing = [key for key in self.needed if key not in found]
        if unknown or missing:
            what = f"has no field {unknown[0]!r}" if unknown else f"needs the field {missing[0]!r}"
            raise InvalidAction(f"an action {what}; its fields are {', '.join(self.fields)}.")
        return found

    def _value(self, field: str, text: str) -> Any:
        kind = self.fields[field]["type"]
        if kind == "string":
            return text
        try:
            value = json_files.parse(text)
        except ValueError:
            value = None
        if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
            raise InvalidAction(f"the reply must be {'true or false' if kind == 'boolean' else f'one {kind}'}.")
        return value
