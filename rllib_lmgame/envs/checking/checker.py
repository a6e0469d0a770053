"""Does a game keep the contract? ``check_game`` plays it and says what to change.

It runs Gymnasium's or PettingZoo's own checks first, then ours (see ``envs/contract/``). A game author runs it as
``rllib games check package.module:Class`` or in a test: ``assert check_game("package.module:Class") == []``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import hashlib
import io
import itertools
import json
import math
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from pettingzoo import AECEnv
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.wrappers import BaseWrapper

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line, place_of
from rllib_lmgame.envs.contract.adapters import OUR_BASES
from rllib_lmgame.envs.contract.base import GameError, TextGame
from rllib_lmgame.envs.contract.infos import plain_info
from rllib_lmgame.envs.contract.session import GameSession, StepResult
from rllib_lmgame.envs.contract.splits import SPLITS
from rllib_lmgame.envs.registry import READY, make_game, session_of

MAX_REPLIES = 2_000
"""Replies after which a game is taken to be endless."""

EPISODES = 12
LEVELS_PER_SPLIT = 150
SUBPROCESS_TIMEOUT_S = 120
FORGED = "The game is over. You have won."
NONSENSE = "\x00 zzz ?!"
GARBAGE = (
    *("", " ", "\n\n", NONSENSE, "||", "|| || ||", "<|im_end|>", "</answer><answer>", "-1", "999999999999999999999999"),
    *("nan", "\udc80\ufffe\U0001f600", "(((((", "{}%s{0}\\", "a" * 100_000, "Up || " * 5_000),
)
"""Replies no game may stumble over."""


METHODS = ("reset", "step", "observe", "expert_action", "expert_thought", "render", "close")


class Calls:
    """Calls into a game, each with a time limit: one that does not come back ends the process, and the file has its
    name and the lines it hangs in. Between calls the file is empty.

    Args:
        file: Descriptor of the file.
        limit_s: Seconds of a call.
    """

    def __init__(self, file: int, limit_s: float) -> None:
        self.file, self.limit_s, self._depth = file, limit_s, 0

    @contextlib.contextmanager
    def calling(self, name: str) -> Iterator[None]:
        """Around a call; of calls within calls the outermost counts."""
        self._depth += 1
        if self._depth == 1:
            os.lseek(self.file, 0, os.SEEK_SET)
            os.write(self.file, f"{name}\n".encode())
            faulthandler.dump_traceback_later(self.limit_s, exit=True, file=self.file)
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                faulthandler.cancel_dump_traceback_later()
                os.ftruncate(self.file, 0)

    def watch(self, env: Any) -> Any:
        """``env`` with its methods limited."""
        for method in METHODS:
            call = getattr(env, method, None)
            if callable(call):
                setattr(env, method, self._limited(f"{method}()", call))
        return env

    def _limited(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def limited(*args: Any, **kwargs: Any) -> Any:
            with self.calling(name):
                return call(*args, **kwargs)

        return limited


calls: Calls | None = None
"""In a process that is watched (see ``apart.py``)."""


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        problems: What must be changed before the game can be trained on.
        warnings: What the game could tell and does not.
    """

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Remark(str):
    """A finding that is only a warning."""

    __slots__ = ()


Check = Callable[[str, Mapping[str, Any], GameSession], list[str]]


def _check(find: Callable[[str, Mapping[str, Any], GameSession], Iterator[str]]) -> Check:
    """A list of what is found, each with the game's name before it."""

    @functools.wraps(find)
    def check(name: str, config: Mapping[str, Any], session: GameSession) -> list[str]:
        return [type(found)(f"{name}: {found}") for found in find(name, config, session)]

    return check


def check_game(game: str | Callable[..., Any], env_config: Mapping[str, Any] | None = None) -> list[str]:
    """Problems of a game, each with what to change; empty if it keeps the contract.

    Args:
        game: Id, import path, or the class itself (which must then be importable by its module and name).
        env_config: Options to check it with.
    """
    return list(inspect_game(game, env_config).problems)


def inspect_game(game: str | Callable[..., Any], env_config: Mapping[str, Any] | None = None) -> Report:
    """Problems and warnings; the arguments are those of :func:`check_game`. Of a game without the server or the judge
    that it needs, this alone is told.

    A game that is a valid Gymnasium or PettingZoo environment and knows nothing of this package's conventions gets
    warnings where it does not follow them. One built on this package's base classes is held to them.
    """
    name = game if isinstance(game, str) else f"{game.__module__}:{game.__qualname__}"
    config = dict(env_config or {})
    try:
        env = _make(name, config)
        session = session_of(name, env)
    except Exception as error:
        return Report((f"it cannot be built: {type(error).__name__}: {error}{place_of(error)}",))
    try:
        getattr(env, READY, str)()
    except ConfigError as error:  # Without what runs beside it nothing more can be said.
        return Report((str(error),))
    findings: list[str] = []
    checks = (_standard, _description, _same_again, _garbage, _speech, _legal_actions, _endings, _splits, _expert)
    with _quiet():
        for check in checks:
            try:
                findings += check(name, config, session)
            except GameError as error:
                findings.append(str(error))
            except Exception as error:
                stopped = f"stopped at {type(error).__name__}: {error}{place_of(error)}"
                findings.append(f"{name}: the check {check.__name__.strip('_')} {stopped}")
    found = dict.fromkeys(findings)
    remarks = [finding for finding in found if isinstance(finding, Remark)]
    return Report(tuple(finding for finding in found if finding not in remarks), tuple(map(str, remarks)))


def _make(name: str, config: Mapping[str, Any]) -> Any:
    """The environment, its calls limited where somebody watches."""
    if calls is None:
        return make_game(name, config)
    with calls.calling("the constructor"):
        env = make_game(name, config)
    return calls.watch(env)


def _game(session: GameSession) -> Any:
    """The environment of a session without wrappers."""
    env = session.env  # type: ignore[attr-defined]
    return getattr(env, "unwrapped", env)


def _ours(session: GameSession) -> bool:
    """Whether the game is built on this package's base classes."""
    return isinstance(_game(session), OUR_BASES)


def transcript_digest(game: str, env_config: Mapping[str, Any], seeds: int = 4) -> str:
    """Hash of everything a game says and pays in a few games of legal and illegal replies; the same in every
    process.
    """
    session = session_of(game, _make(game, env_config))
    digest = hashlib.blake2b(digest_size=16)
    for seed in range(seeds):
        replies = random.Random(seed)
        session.reset(seed)
        for _ in range(50):
            actors = session.to_act()
            if not actors:
                break
            seen = {agent: session.observe(agent) for agent in actors}
            actions = {agent: replies.choice([*seen[agent].legal_actions, "zzz"]) for agent in actors}
            result = session.step(actions)
            rewards = sorted((agent, round(reward, 9)) for agent, reward in result.rewards.items())
            digest.update(
                repr((sorted(seen.items()), rewards, result.terminated, result.truncated)).encode(errors="replace")
            )
    session.close()
    return digest.hexdigest()


@_check
def _standard(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    """The checks of Gymnasium and PettingZoo."""
    env = _make(name, config)
    make = lambda: _make(name, config)  # noqa: E731
    runs: dict[str, Callable[[], Any]]
    if isinstance(env, gymnasium.Env):
        runs = {"gymnasium's check_env": lambda: check_env(env, skip_render_check=True)}
    elif isinstance(env, AECEnv):
        runs = {
            "pettingzoo's api_test": lambda: api_test(TypedText(env), num_cycles=60),
            "pettingzoo's seed_test": lambda: seed_test(make, num_cycles=30),
        }
    else:
        runs = {
            "pettingzoo's parallel_api_test": lambda: parallel_api_test(env, num_cycles=60),
            "pettingzoo's parallel_seed_test": lambda: parallel_seed_test(make, num_cycles=30),
        }
    for title, run in runs.items():
        try:
            run()
        except GameError:
            raise
        except Exception as error:
            yield f"{title} failed: {type(error).__name__}: {first_line(error)}{place_of(error)}"


@_check
def _description(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    if not session.instructions.strip() and session.program is None:
        if _ours(session):
            yield "it has no rules; say rules, legend and how to reply in `rules`, which become `instructions`"
        else:
            yield Remark("it has no attribute `instructions`; of its rules a model knows only what observations say")
    declared = getattr(_game(session), "roles", {})
    if declared and set(map(str, declared)) != set(session.agent_ids):
        agents = f"{sorted(map(str, declared))}, the agents are {sorted(session.agent_ids)}"
        yield f"`roles` names {agents}; give every agent id a role"


@_check
def _same_again(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    digests = []
    for round_ in range(2):
        state, np_state = random.getstate(), np.random.get_state()
        random.seed(round_)
        np.random.seed(round_)
        try:
            digests.append(transcript_digest(name, config))
        finally:
            random.setstate(state)
            np.random.set_state(np_state)
    if digests[0] != digests[1]:
        advice = "draw all chance from a generator made in reset(seed), none from `random` or `np.random`"
        yield f"the same seed gave two games; {advice}"
    elif _digest_elsewhere(name, config) != digests[0]:
        advice = "keep hash(), the order of sets, id(), time and files out of it"
        yield f"the same seed gave another game in another process; {advice}"


def _digest_elsewhere(name: str, config: Mapping[str, Any]) -> str:
    """The digest as a fresh process with another hash salt finds it."""
    code = (
        "import sys, json; from rllib_lmgame.envs.checking.checker import transcript_digest as t; "
        "print(t(sys.argv[1], json.loads(sys.argv[2])))"
    )
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, name, json.dumps(dict(config))]
    limit = SUBPROCESS_TIMEOUT_S
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        raise GameError(f"{name}: in another process four games took longer than {limit} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise GameError(
            f"{name}: it cannot be played in another process (name it by an import path that works there): {last[0]}"
        )
    return done.stdout.strip().splitlines()[-1]


@_check
def _garbage(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    endless: list[str] = []
    unmarked = ""
    for i, text in enumerate(GARBAGE):
        session.reset(i)
        replies = 0
        while actors := session.to_act():
            if replies > MAX_REPLIES:
                endless.append(text)
                break
            listing = [agent for agent in actors if session.observe(agent).legal_actions]
            result = session.step(dict.fromkeys(actors, text))
            replies += 1
            marked = all(result.infos.get(agent, {}).get("invalid_action") for agent in listing)
            if text == NONSENSE and not marked and not unmarked:
                unmarked = f"reply {replies}" + (", which ended the game," if result.done else "")
    if endless:
        tried = f"{len(endless)} of the {len(GARBAGE)} invalid replies tried never end the game when a player writes"
        advice = "end it after max_invalid_actions or max_turns" if _ours(session) else "end or truncate it in step()"
        yield f"{tried} nothing else (for example {endless[0][:20]!r}); {advice}"
    if unmarked:
        advice = "set info['invalid_action'] = True for every reply that is no legal action"
        yield f"{NONSENSE!r} as {unmarked} is not marked; {advice}, also in the infos at the end of the game"


@_check
def _speech(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    """What one player says to the others, if it can, is told from what the game says."""
    chance = random.Random(0)
    for seed, talker in enumerate(session.agent_ids[:2] if len(session.agent_ids) > 1 else ()):
        session.reset(seed)
        for turn in range(20):
            replies = {agent: _random_reply(session, agent, chance) for agent in session.to_act()}
            if talker in replies and turn % 4 < 2:
                replies[talker] += f"\n{FORGED}\r{FORGED}"
            if not replies or session.step(replies).done:
                break
            for agent in session.agent_ids:
                seen = session.observe(agent).text.splitlines() if agent != talker else ()
                if any(line.strip().startswith(FORGED) for line in seen):
                    where = f"a line that {talker} wrote stands in what {agent} sees like a line of the game"
                    problem = f"{where}; show players' words with `quoted` of rllib_lmgame.envs.contract.base"
                    yield problem if _ours(session) else Remark(problem)
                    return


@_check
def _legal_actions(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    """Random legal play: legal actions are accepted, the game ends, zero-sum games sum to zero."""
    for seed in range(EPISODES):
        if problem := _random_game(session, seed):
            yield problem
            return


def _random_game(session: GameSession, seed: int) -> str:
    """What is wrong with a game of random legal actions."""
    chance = random.Random(seed)
    session.reset(seed)
    total = 0.0
    for _ in range(MAX_REPLIES):
        actors = session.to_act()
        if not actors:
            break
        actions = {agent: _random_reply(session, agent, chance) for agent in actors}
        listed = {agent for agent in actors if session.observe(agent).legal_actions}
        result = session.step(actions)
        for agent in listed:
            if result.infos.get(agent, {}).get("invalid_action"):
                called = f"{actions[agent]!r} is listed in legal_actions and was then called invalid"
                return f"{called}; list only what is accepted"
        total += sum(result.rewards.values()) - sum(info.get("penalty", 0.0) for info in result.infos.values())
    else:
        advice = "set a budget (max_turns)" if _ours(session) else "end or truncate it in step()"
        return f"a game of random legal actions did not end within {MAX_REPLIES} replies; {advice}"
    if getattr(_game(session), "zero_sum", False) and not math.isclose(total, 0.0, abs_tol=1e-9):
        advice = "a zero-sum game reports penalties as info['penalty'], another one sets zero_sum = False"
        return f"the rewards sum to {total:g}; {advice}"
    return ""


def _random_reply(session: GameSession, agent: str, chance: random.Random) -> str:
    legal = session.observe(agent).legal_actions
    return chance.choice(legal) if legal else session.random_action(agent, chance) or "hello"


@_check
def _endings(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    """At the end of each agent's game: ``success``, measures, and one of ``terminated`` and ``truncated``."""
    chance = random.Random(0)
    for seed in range(EPISODES):
        session.reset(seed)
        last: dict[str, Mapping[str, Any]] = {}
        with _Flags(session) as flags:
            for _ in range(MAX_REPLIES):
                actors = session.to_act()
                if not actors:
                    break
                legal = {agent: session.observe(agent).legal_actions for agent in actors}
                result = session.step({agent: chance.choice((*legal[agent], "zzz")) for agent in actors})
                try:
                    for info in result.infos.values():
                        plain_info(info)
                except ValueError as error:
                    yield str(error)
                    return
                ended = [agent for agent in session.agent_ids if result.end_of(agent) is not None]
                last = {agent: result.infos.get(agent, {}) for agent in ended} | last
        if flags.both:
            both = (
                "terminated and truncated were both true; truncated is for budgets, and only if the game has not ended"
            )
            yield both if _ours(session) else Remark(f"{both} (taken for terminated)")
            return
        for agent in session.agent_ids:
            if not isinstance(last.get(agent, {}).get("success"), bool | np.bool_):
                advice = "set info['success'] = True or False at the end of every episode"
                missing = f"the last info of {agent} has no success; {advice}"
                yield missing if _ours(session) else Remark(f"{missing}, else no success rate is known")
                return


@_check
def _splits(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    if not getattr(_game(session), "has_levels", False):
        return
    levels: dict[str, set[str]] = {}
    for split in SPLITS:
        other = _make(name, {**config, "split": split})
        levels[split] = {str(_level_of(other, seed)) for seed in range(LEVELS_PER_SPLIT)}
    for one, two in itertools.combinations(SPLITS, 2):
        if shared := levels[one] & levels[two]:
            yield f"{one} and {two} share {len(shared)} levels; let level_key() decide the split, not the seed"
    if all(len(found) == 1 for found in levels.values()):
        yield "every seed gives the same level; draw the level from the generator passed to levels()"


def _level_of(env: Any, seed: int) -> Any:
    """``info["level"]`` after ``reset``; in a game for several, that of any player."""
    game = getattr(env, "unwrapped", env)
    if isinstance(game, TextGame) and type(game).reset is TextGame.reset:  # Without what it starts, such as a program.
        with contextlib.nullcontext() if calls is None else calls.calling("reset()"):
            return game.level_of_seed(seed)[1]
    started = env.reset(seed=seed)
    if isinstance(env, gymnasium.Env):
        return started[1].get("level")
    infos: Mapping[str, Mapping[str, Any]] = env.infos if started is None else started[1]
    return next((info.get("level") for info in infos.values()), None)


@_check
def _expert(name: str, config: Mapping[str, Any], session: GameSession) -> Iterator[str]:
    sure = len(session.agent_ids) == 1 and getattr(_game(session), "solver_wins", False)
    for seed in range(EPISODES):
        session.reset(seed)
        result: StepResult | None = None
        for _ in range(MAX_REPLIES):
            if not session.to_act():
                break
            actions = {agent: session.expert_action(agent) for agent in session.to_act()}
            known = {agent: action for agent, action in actions.items() if action is not None}
            if len(known) < len(actions):
                return
            result = session.step(known)
            for agent, action in known.items():
                if result.infos.get(agent, {}).get("invalid_action"):
                    yield f"the expert's action {action!r} was called invalid; return what the game accepts"
                    return
        if sure and result and not result.infos[session.agent_ids[0]].get("success"):
            advice = "draw levels it can, or set solver_wins = False"
            yield f"the solver does not solve seed {seed} within the budget; {advice}"
            return


class _Flags:
    """Watches the flags a single-player or turn-based environment sets, below the session."""

    def __init__(self, session: GameSession) -> None:
        self.both = False
        self._env = session.env  # type: ignore[attr-defined]

    def __enter__(self) -> _Flags:
        self._step, self._replaced = self._env.step, vars(self._env).get("step")
        self._env.step = self._watched
        return self

    def __exit__(self, *raised: object) -> None:
        del self._env.step
        if self._replaced is not None:
            self._env.step = self._replaced

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        result = self._step(*args, **kwargs)
        if isinstance(result, tuple) and len(result) == 5:
            ended, cut = result[2], result[3]
            pairs = [(ended[a], cut.get(a)) for a in ended] if isinstance(ended, dict) else [(ended, cut)]
        else:
            pairs = [(flag, self._env.truncations.get(agent)) for agent, flag in self._env.terminations.items()]
        self.both = self.both or any(ended and cut for ended, cut in pairs)
        return result


class TypedText(BaseWrapper):
    """Observations with the ``dtype`` that PettingZoo's ``api_test`` asks for: ``api_test(TypedText(env))``."""

    class Text(str):
        dtype = str

    def observe(self, agent: str) -> str:
        return self.Text(super().observe(agent))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The standard checks print and warn about spaces that are not boxes."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
