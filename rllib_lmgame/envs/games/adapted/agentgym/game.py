"""A task on one of AgentGym's servers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.step_timer import WaitedTooLong
from rllib_lmgame.base.text import shown
from rllib_lmgame.envs.contract.base import GameError, InvalidAction, TextGameOptions, invalid_rule
from rllib_lmgame.envs.contract.splits import ALL, TEST, TRAIN, VALIDATION, split_of_digest
from rllib_lmgame.envs.games.adapted.agentgym.instructions import RULES, functions_of
from rllib_lmgame.envs.games.adapted.agentgym.items import Item, categories_in, read_items
from rllib_lmgame.envs.games.adapted.agentgym.server import Server, Session
from rllib_lmgame.envs.games.adapted.agentgym.tasks import ITEM, SCHEME, TASKS, Task
from rllib_lmgame.envs.games.adapted.on_server import TOKEN, read_token
from rllib_lmgame.envs.support.addresses import check_address
from rllib_lmgame.envs.support.listed_levels import ListedLevels
from rllib_lmgame.envs.support.replies import WholeReplyGame

TIMED_OUT = "TimeoutError"
"""WebArena's observation where a page never loads."""


class AgentGymOptions(TextGameOptions):
    """``env_config`` of games on AgentGym's servers."""

    task: str = option("textcraft", "The task; `agentgym:TASK` says it.", choices=tuple(TASKS))
    max_turns: int = option(20, "Replies per episode; each task has AgentGym's number.", ge=1)
    invalid_action_penalty: float = option(0.0, "Reward of a reply without an action.", le=0)
    max_invalid_actions: int | None = option(
        None, "Replies in a row without an action that end the episode; null never ends it.", ge=1
    )
    url: str | None = option(None, "Where the server is: `http://HOST:PORT`. Maze and Wordle add their own paths.")
    token_variable: str | None = option(None, TOKEN)
    ids: str | int | None = option(
        None,
        "Items: a file of AgentGym's, a JSON list of `{item_id}`; `data:agentgym-ids:TASK`; or numbers, as `7` or "
        "`0-99, 120`.",
        path=True,
    )
    test_ids: str | int | None = option(
        None,
        "Items of the split `test`, in the same form; no other split has them. null: it is made of `ids`, by hash.",
        path=True,
    )
    id_table: str | None = option(
        None,
        "File with the numbers of items whose ids are texts, as ALFWorld's: AgentGym's `mappings_train.json`, or a "
        "mapping of texts to numbers.",
        path=True,
    )
    categories: str | None = option(
        None,
        "Folder of AgentGym's in which each file is the list of a category of items (`AgentEval/TASK`): "
        "evaluations have a row for each.",
        path=True,
    )
    timeout_s: float = option(600.0, "Longest time for one request; then the episode is dropped.", gt=0, le=86_400)
    retries: int = option(10, "Times a request is sent again that the server was too busy for, or not there.", le=100)


class AgentGym(ListedLevels, WholeReplyGame):
    """A task on one of AgentGym's servers, which runs beside this package.

    Observation: what the server says.
    Action: what the task asks for, in the reply format of the run; the server judges it.
    Reward: the server's, scaled so that a score of 1 is the best. Where it gives a score, each reply is paid by how
        much the score changes, so that the sum is the last score, which is what AgentGym reports.
    Horizon: AgentGym's, by task.
    Levels: items by their ids (option ``ids``).
    """

    Options: ClassVar[type[TextGameOptions]] = AgentGymOptions
    slow_calls = True  # the server is a process of its own
    solver_wins = False
    options: AgentGymOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        self.task: Task = TASKS[chosen.task]
        self._name = name = f"{SCHEME}:{chosen.task}"
        if chosen.url is None:
            start = f"{self.task.start} --host 127.0.0.1 --port 36001"
            message = f"{name} needs the address of a server ({self.task.package} of AgentGym): start one with"
            raise ConfigError("env_config.url", f"{message} `{start}` and write url: http://127.0.0.1:36001")
        address = check_address(chosen.url, "env_config.url", "env_config.token_variable")
        url = address if address.endswith(self.task.path) else address + self.task.path
        token = read_token(chosen.token_variable)
        self.server = Server(url, self.task.start, chosen.timeout_s, chosen.retries, token)
        self._items = self._items_of(chosen.ids, "ids")
        self._test_items = self._items if chosen.test_ids is None else self._items_of(chosen.test_ids, "test_ids")
        self._tested = frozenset(item.number for item in self._test_items) if chosen.test_ids is not None else ()
        self._categories = categories_in(chosen.categories, chosen.task, "env_config.categories")
        self._session: Session | None = None
        self._closings = 0
        self._seen = ""
        self._listed: tuple[str, ...] = ()
        self._score = self._last = 0.0
        self._over = False

    def _items_of(self, source: str | int | None, key: str) -> tuple[Item, ...]:
        if source is None:
            return ()
        return read_items(source, self.options.task, self.options.id_table, f"env_config.{key}")

    def _check_items(self) -> None:
        if not self._items and not (self._test_items and self.options.split == TEST):
            lists = f"a file of AgentGym's, data:agentgym-ids:{self.options.task}, or numbers: 0-99"
            raise ConfigError("env_config.ids", f"{self._name} needs its items: {lists}")

    def check_ready(self) -> str:
        """Ask the server whether it is there, and open and close a session.

        Returns: What was found, in a few words.
        Raises: ConfigError: if it is not there, or opens no session; the message says how one is started. Also if there
            are no items to play.
        """
        self._check_items()
        self.check_split()
        patient, self.server = self.server, self.server.hurried()
        try:
            self.server.check()
            self._open()
        except (GameError, WaitedTooLong) as error:
            raise ConfigError("env_config.url", f"no session of {self.options.task} can be opened: {error}") from None
        finally:
            self.close()
            self.server = patient
        return f"answers at {self.server.url} and opens sessions"

    @property
    def rules(self) -> str:
        return RULES[self.options.task].format(turns=self.options.max_turns)

    @property
    def instructions(self) -> str:
        said = self.options.invalid_action_penalty or self.options.max_invalid_actions is not None
        return f"{self.rules}\n{invalid_rule(self.options, self.options.max_turns)}" if said else self.rules

    def functions(self) -> list[dict[str, Any]]:
        """Those of the task, by AgentGym's names; none for most."""
        return functions_of(self.options.task)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the item of ``seed``."""
        self._check_items()
        return super().reset(seed=seed, options=options)

    @property
    def listed(self) -> Sequence[Item]:
        return self._items

    @property
    def candidates(self) -> Sequence[Item]:
        if self.options.split == ALL:
            return self._items
        if self.options.split == TEST:
            return self._test_items
        return [item for item in self._items if item.number not in self._tested]

    def level_key(self, level: Item) -> str:
        return f"{SCHEME} {self.options.task} {level.name}"

    def split_of_level(self, digest: str, level: Item) -> str:
        by_hash = split_of_digest(digest)
        if self.options.test_ids is None:
            return by_hash
        if level.number in self._tested:
            return TEST
        return VALIDATION if by_hash == VALIDATION else TRAIN

    def category(self, level: Item) -> str:
        """The list of ``categories`` that has the item; empty if none has."""
        return self._categories.get(level.name, "")

    def start(self, level: Item) -> None:
        self._score, self._last, self._over, self._listed = 0.0, 0.0, False, ()
        if self._session is not None and not self.server.knows(self._session):
            self.close()
        session = self._open()
        body = {key: level.number if value == ITEM else value for key, value in self.task.reset.items()}
        answer = self.server.post("/reset", {**session, **body})
        if isinstance(answer, Mapping) and answer.get("observation") == TIMED_OUT:
            raise GameError(f"the server could not load item {level.name}: {TIMED_OUT}")
        if self.task.first:
            shown_first = [self._field("/reset", answer, name, str) for name in self.task.first]
        else:
            shown_first = [self._text("/observation", self.server.get("/observation", **session))]
        if self.options.task == "wordle":
            words = self.server.get("/filtered_vocab", **session)
            if not isinstance(words, list):
                raise self._nonsense("/filtered_vocab", words)
            shown_first.append("Words: " + " ".join(map(str, words)))
        self._seen = "\n".join(shown_first)
        self._list_actions(answer)
        if self._listed and self.options.task == "alfworld":
            self._seen += f"\nAVAILABLE ACTIONS: {','.join(self._listed)}"

    def board(self) -> str:
        return self._seen

    def legal_actions(self) -> tuple[str, ...]:
        """Those that the server lists: all of ALFWorld; with ``show_legal_actions`` what can be clicked in WebShop."""
        return self._listed

    def read_move(self, text: str) -> str:
        if not text.strip():
            raise InvalidAction("the reply has no action.")
        return text

    def play_move(self, move: str) -> float:
        session = self._open()
        answer = self.server.post("/step", {**session, "action": self.task.sent(move)}, once=True)
        self._seen = self._field("/step", answer, self.task.text, str)
        self._over = bool(self._field("/step", answer, self.task.done, bool | int))
        value = self._field("/step", answer, self.task.value, bool | int | float) / self.task.scale
        if not math.isfinite(value):
            raise self._nonsense("/step", answer)
        before, self._last = self._score, value
        if self.task.sums:
            self._score += value
        elif self._over or not self.task.paid_at_end:
            self._score = min(1.0, max(0.0, value))
        if not self._over:
            self._list_actions(answer)
        return self._score - before

    @property
    def success(self) -> bool:
        """Reached what AgentGym counts as a success (in the maze: the goal, which alone costs nothing)."""
        if self.options.task == "maze":
            return self._over and self._last >= 0
        return self._score > self.task.wins_above

    @property
    def finished(self) -> bool:
        return self._over

    def close(self) -> None:
        """Give the session back; it is closed if the server knows how."""
        self._closings += 1
        session, self._session = self._session, None
        if session is not None:
            self.server.close(session)

    def _open(self) -> dict[str, Any]:
        """What requests carry to name the session, which is opened when it is first needed."""
        most, closings = self.task.most_sessions, self._closings
        for _ in range(self.server.retries + 1):
            if self._session is not None:
                return self._session.fields
            answer = self.server.post("/create", self.task.create)
            found = self._field("/create", answer, self.task.created, int) if self.task.created else answer
            if isinstance(found, bool) or not isinstance(found, int):
                raise self._nonsense("/create", answer)
            session = Session({self.task.key: found})
            if self.server.take(session, closes=self.task.closes, limited=most is not None):
                if self._closings != closings:  # Given up meanwhile, as the server took too long.
                    self.server.close(session)
                    raise GameError("the game was closed before its session was open")
                self._session = session
                return session.fields
        raise WaitedTooLong(f"all {most} sessions of {self.server.url} are taken; play fewer games at once")

    def _list_actions(self, answer: Any) -> None:
        if self.options.task == "alfworld":
            listed = self._field("", answer, "available_actions", list)
            self._listed = tuple(action for action in listed if isinstance(action, str))
        elif self.options.task == "webshop" and self.options.show_legal_actions:
            found = self.server.get("/available_actions", **self._open())
            clickable = self._field("/available_actions", found, "clickables", list)
            self._listed = tuple(f"click[{text}]" for text in clickable)

    def _field(self, path: str, answer: Any, name: str, kind: Any) -> Any:
        """What an answer says under a name. Raises: GameError: it has no such thing of this kind."""
        found = answer.get(name) if isinstance(answer, Mapping) else None
        if found is None or not isinstance(found, kind):
            raise self._nonsense(path, answer)
        return found

    def _text(self, path: str, answer: Any) -> str:
        if not isinstance(answer, str):
            raise self._nonsense(path, answer)
        return answer

    def _nonsense(self, path: str, answer: Any) -> GameError:
        return GameError(f"{self.server.url}{path} answers what is not {self.options.task}'s: {shown(answer, 200)}")
