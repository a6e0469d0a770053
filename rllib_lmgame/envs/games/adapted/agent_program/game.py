"""A program of a user's as a game: what the policy replies to are the completions that it asks for."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.text import shown
from rllib_lmgame.endpoints.completions import ChatReply, ChatRequest, RequestError
from rllib_lmgame.envs.contract.base import MAX_TEXT, GameError, InvalidAction, TextGame, TextGameOptions
from rllib_lmgame.envs.games.adapted.agent_program.programs import Host, ProgramProblem, Run, host_of

RETURNED = ("reward", "success", "measures", "category")
"""What a program may return by name."""


class AgentProgramOptions(TextGameOptions):
    """``env_config`` of agent programs."""

    max_turns: int = option(
        100, "Completions per episode; a program that asks for more is ended, and the episode is cut short.", ge=1
    )
    invalid_action_penalty: float = option(0.0, "No reply is invalid; the program says what it is worth.", le=0)
    max_invalid_actions: int | None = option(None, "Likewise.", ge=1)
    program: str | None = option(None, "The program; `agent:package.module:function` says it.")
    options: dict[str, Any] = option({}, "What the program finds as `task.options`.")
    success_above: float = option(
        0.0, "Where the program returns no `success`: an episode is a success if its reward is above this."
    )


class AgentProgram(TextGame):
    """A Python program of yours, which asks the policy for completions and says what they were worth.

    Observation: what the program asks for: the messages that are new.
    Action: the reply, of which the program gets text and calls of tools.
    Reward: what the program returns, at its end.
    Horizon: the program's, and `max_turns`.
    Levels: seeds, as `task.seed`.
    """

    Options: ClassVar[type[TextGameOptions]] = AgentProgramOptions
    slow_calls = True  # the program is a process of its own
    solver_wins = False
    options: AgentProgramOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        if self.options.program is None:
            raise ConfigError("env_config.program", "is missing; write agent:package.module:function as the game")
        self._path = self.options.program
        module, _, name = self._path.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
            raise ConfigError("env", f"{self._path!r} is no program; write agent:package.module:function")
        self._host: Host | None = None
        self._run: Run | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.request: ChatRequest | None = None
        self._refused = ""
        self._replies = self._refusals = 0
        self._over = self._won = False
        self._reward = 0.0
        self._measures: dict[str, float] = {}

    @property
    def program(self) -> AgentProgram:
        """Who asks for replies (:class:`~rllib_lmgame.envs.contract.session.AskingProgram`)."""
        return self

    def check_ready(self) -> str:
        """Import the program in a process of its own.

        Returns: What was found, in a few words.
        Raises: ConfigError: it cannot be imported or called.
        """
        try:
            self._host = host_of(self._path)
        except ProgramProblem as problem:
            raise ConfigError("env", f"agent:{self._path}: {problem}") from None
        return "can be called"

    @property
    def rules(self) -> str:
        return ""

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randrange(2**31)

    def level_key(self, level: int) -> str:
        return f"program {level}"

    def start(self, level: int) -> None:
        self._end()
        self._begin_anew()
        chosen = self.options
        try:
            if self._host is None or not self._host.alive:
                self._host = host_of(self._path)
            self._run = Run(self._host, {"seed": level, "split": chosen.split, "options": chosen.options})
        except (ProgramProblem, OSError) as problem:
            raise GameError(f"agent:{self._path}: {problem}") from None
        self._go_on()

    def board(self) -> str:
        return "" if self.request is None else self.request.text[:MAX_TEXT]

    def legal_actions(self) -> tuple[str, ...]:
        return ()

    def read_move(self, text: str) -> str:
        return text.encode(errors="replace").decode()  # With a lone surrogate no client could say it again.

    def play_move(self, move: str) -> float:
        """Hand in the reply. The reward is that of the program's end, if it comes now."""
        if self._run is None:
            raise GameError(f"agent:{self._path}: it was ended")
        if self.request is not None:
            self._run.answer(ChatReply(move))  # Unless a reply was delivered.
            self._replies, self._refusals = self._replies + 1, 0
            self._go_on()
        return self._reward

    def deliver(self, reply: ChatReply) -> bool:
        """Hand in the reply; if who asked has gone, wait for what comes next.

        Returns: Whether the program got it.
        Raises: GameError: it goes away again and again.
        """
        if self._run is None:
            raise GameError(f"agent:{self._path}: it was ended")
        delivered = self._run.answer(reply)
        if not delivered:
            self._not_replied("its client had gone before the reply")
        return delivered

    def refuse(self, error: RequestError) -> None:
        """Answer what is asked with an error, and wait for what comes next.

        Raises: GameError: it goes on to ask what is refused.
        """
        if self._run is not None:
            self._run.answer(error)
            self._not_replied(f"its requests were refused: {error}")

    def _not_replied(self, why: str) -> None:
        self._refused = why
        self._refusals += 1
        if self._refusals > self.options.max_turns:  # It would go on for ever.
            raise GameError(f"agent:{self._path}: {why}, {self._refusals} times in a row")
        self._go_on()

    def _play(self, action: Any) -> tuple[float, str, InvalidAction | None]:
        return self.play_move(str(action)), "", None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if result[3]:
            self._end()
        return result

    @property
    def success(self) -> bool:
        """What the program returns, else whether its reward is above ``success_above``."""
        return self._won

    @property
    def finished(self) -> bool:
        return self._over

    def measures(self) -> Mapping[str, float]:
        return self._measures

    def close(self) -> None:
        """End the program."""
        self._end()
        self._host = None

    def _end(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.end()

    def _go_on(self) -> None:
        """Wait for what the program asks next, or for its end. Raises: GameError: it failed."""
        assert self._run is not None
        self.request = self._run.next_request()
        if self.request is not None:
            return
        if not self._replies:
            why = f": {self._refused}" if self._refused else ""
            raise GameError(f"agent:{self._path}: it ended without a completion{why}")
        self._take(self._run.result)
        self._over = True

    def _take(self, result: Any) -> None:
        """What the program returned. Raises: GameError: it is no reward."""
        given = result if isinstance(result, dict) else {"reward": result}
        unknown = [key for key in given if key not in RETURNED]
        reward: Any = given.get("reward")
        success, kind, measures = given.get("success"), given.get("category", ""), given.get("measures") or {}
        if unknown or not _is_number(reward) or not isinstance(success, bool | None) or not isinstance(kind, str):
            form = "a number, or {'reward': number, 'success': bool, 'measures': {name: number}, 'category': text}"
            raise GameError(f"agent:{self._path}: it returned {shown(result)}; it must return {form}")
        if not isinstance(measures, dict) or not all(map(_is_number, measures.values())):
            raise GameError(f"agent:{self._path}: its measures are {shown(measures)}; they must be numbers by name")
        self._reward = float(reward)
        self._won = self._reward > self.options.success_above if success is None else success
        self._measures = {name: float(value) for name, value in measures.items()}
        self._category = kind


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and abs(value) <= sys.float_info.max
