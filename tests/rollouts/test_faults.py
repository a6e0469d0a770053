"""A game that raises, hangs or talks nonsense costs its own episode, with the right reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
from episode_parts import collected
from session_play import play_games

from rllib_lmgame.algorithms import models
from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.step_timer import waiting
from rllib_lmgame.envs import make_session, registry
from rllib_lmgame.envs.contract.base import text_space
from rllib_lmgame.envs.contract.session import Observation, StepResult
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.rollouts import env_runner, game_calls
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.game_calls import GameCalls
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import AgentAssignment, EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import Sessions, play_one
from rllib_lmgame.rollouts.records import GameConfig, PlaySettings
from rllib_lmgame.rollouts.seats import EpisodeFailed, Seat
from rllib_lmgame.sandbox.limits import SandboxBusyError

MakeRunner = Callable[..., TextGameEnvRunner]
HANG = threading.Event()
EPISODES = 6
LIMIT_S = 600.0
"""No sound call takes that long on any machine; for the calls that hang the limit is brought forward."""

CALL = threading.local()


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """Games that hang, hang until the test is over."""
    HANG.clear()
    yield
    HANG.set()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[Any, asyncio.Timeout]:
    """The newest time limit of each task. In a game's thread ``CALL.expire()`` lets the limit of the call run out."""
    newest: dict[Any, asyncio.Timeout] = {}
    real_timeout, real_thread = asyncio.timeout, game_calls.in_daemon_thread

    def timeout(delay: float) -> asyncio.Timeout:
        assert delay >= LIMIT_S
        newest[asyncio.current_task()] = limit = real_timeout(None)
        return limit

    async def in_daemon_thread(function: Callable[..., Any], *args: Any, unwanted: Any = None) -> Any:
        loop, limit = asyncio.get_running_loop(), newest[asyncio.current_task()]

        def work() -> Any:
            CALL.expire = lambda: loop.call_soon_threadsafe(lambda: limit.reschedule(loop.time()))
            return function(*args)

        return await real_thread(work, unwanted=unwanted)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    monkeypatch.setattr(game_calls, "in_daemon_thread", in_daemon_thread)
    return newest


class BadWords(Exception):
    """What a game of others may put into an info, or raise: its words are code."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault

    def __str__(self) -> str:
        if self.fault == "hang":
            CALL.expire()
            HANG.wait()
        raise SystemExit(3)


class BadGame(gymnasium.Env[str, str]):
    """Does what ``fault`` says in every episode of an odd seed; the others are sound."""

    metadata: dict[str, Any] = {}
    instructions = "Play."

    def __init__(self, fault: str = "", where: str = "step", level: int = 0) -> None:
        self.observation_space = self.action_space = text_space()
        self.fault, self.where = fault, where
        self.closed = False
        if where == "constructor":
            self.misbehave()

    def misbehave(self) -> Any:
        if self.fault == "raise":
            raise ValueError("boom")
        if self.fault == "exit":
            raise SystemExit(3)
        if self.fault == "stop":
            raise StopIteration
        if self.fault == "cancel":
            raise asyncio.CancelledError
        if self.fault == "timeout":
            raise TimeoutError("my own")
        if self.fault == "hang":
            CALL.expire()
            HANG.wait()
        return self.fault

    def say(self) -> Any:
        """Words that misbehave when they are read, in an info or in an error."""
        if self.where == "error":
            raise BadWords(self.fault)
        return {"success": True, "said": BadWords(self.fault)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.odd = bool(seed and seed % 2)
        if self.where == "every reset" or (self.odd and self.where == "reset"):
            self.misbehave()
        return "go", {}

    def step(self, action: str) -> Any:
        reward: Any = 1.0
        observation: Any = "done"
        ended: Any = True
        info: Any = self.say() if self.odd and self.where in ("info", "error") else {"success": True}
        if self.odd and self.where == "step":
            self.misbehave()
            reward = {"nan": float("nan"), "inf": float("inf"), "text reward": "much", "no reward": None}.get(
                self.fault, reward
            )
            observation = {"bytes": b"x", "no text": None}.get(self.fault, observation)
            ended = {"flag": "yes"}.get(self.fault, ended)
            info = {"info": "none", "success": {"success": [True, False]}, "half": {"success": 0.5}}.get(
                self.fault, info
            )
            info = {"result": {"result": float("nan")}, "huge result": {"result": 10**400}}.get(self.fault, info)
            if self.fault == "no tuple":
                return None
        return observation, reward, ended, False, info

    def expert_action(self) -> str:
        if self.odd and self.where == "expert":
            self.misbehave()
        return "Up"

    def close(self) -> None:
        self.closed = True
        if self.where == "close":
            self.misbehave()


def run(runner: TextGameEnvRunner, count: int = EPISODES, **settings: Any) -> Any:
    return play_games(runner, count, **settings)


def odd(count: int = EPISODES) -> list[int]:
    return [plan.index for plan in plan_episodes(count, run_seed=0, purpose="t", iteration=1) if plan.seed % 2]


RAISING = ["raise", "exit", "stop", "cancel", "timeout"]
NONSENSE = [
    "nan",
    "inf",
    "text reward",
    "no reward",
    "bytes",
    "no text",
    "flag",
    "info",
    "success",
    "half",
    "result",
    "huge result",
    "no tuple",
]


def bad(make_runner: MakeRunner, fault: str, where: str = "step", **attributes: Any) -> TextGameEnvRunner:
    """A runner of bad games, whose calls have a time limit."""
    config = {"fault": fault, "where": where}
    rollouts = {"env_step_timeout_s": LIMIT_S}
    return make_runner(f"{__name__}:BadGame", env_config=config, rollouts=rollouts, **attributes)


@pytest.mark.parametrize(
    ("fault", "own"),
    [*((f, False) for f in (*RAISING, *NONSENSE)), *((f, True) for f in ("exit", "cancel", "timeout"))],
)
def test_a_fault_costs_its_own_episodes(make_runner: MakeRunner, monkeypatch, fault: str, own: bool) -> None:
    """A game of this package is called in place, on the event loop, and may pass on what others raise."""
    known = {"bad": SimpleNamespace(entry_point=f"{__name__}:BadGame")} if own else {}
    monkeypatch.setattr(registry, "own_games", lambda: known)
    result = run(bad(make_runner, fault))
    assert result.error is None
    assert [failure.plan.index for failure in result.failures] == odd()
    assert {failure.reason for failure in result.failures} == {"env_error"}
    assert all("BadGame" in failure.message for failure in result.failures)
    assert [summary.index for summary in result.summaries] == [i for i in range(EPISODES) if i not in odd()]
    assert len(result.episodes) == len(result.summaries)
    assert all(summary.success for summary in result.summaries)


@pytest.mark.parametrize(
    ("fault", "where", "reason", "says"),
    [
        ("hang", "reset", "timeout", "reset took longer than env_step_timeout_s=600"),
        ("hang", "step", "timeout", "step took longer than env_step_timeout_s=600"),
        ("hang", "expert", "timeout", "expert_action took longer"),
        ("hang", "info", "timeout", "BadGame"),
        ("hang", "error", "timeout", "BadGame"),
        ("exit", "info", "env_error", "BadGame"),
        ("exit", "error", "env_error", "BadGame"),
    ],
)
def test_a_hang_and_words_that_misbehave_cost_their_own_episodes(
    make_runner: MakeRunner, limits: Any, fault: str, where: str, reason: str, says: str
) -> None:
    """Nothing of a game's is read on the event loop, where it would stop all games."""
    result = run(bad(make_runner, fault, where), **({"expert": "solver"} if where == "expert" else {}))
    assert result.error is None
    assert [failure.plan.index for failure in result.failures] == odd()
    assert {failure.reason for failure in result.failures} == {reason}
    assert says in result.failures[0].message
    assert len(result.summaries) == EPISODES - len(odd())
    hanging = [thread for thread in threading.enumerate() if thread.name == "game-call"]
    assert hanging and all(thread.daemon for thread in hanging)


@pytest.mark.parametrize(("fault", "reason"), [("raise", "env_error"), ("hang", "timeout")])
def test_a_constructor_that_fails(make_runner: MakeRunner, limits: Any, fault: str, reason: str) -> None:
    runner = bad(make_runner, fault, "constructor")
    result = run(runner, 3)
    assert [failure.reason for failure in result.failures] == [reason] * 3
    assert "the constructor" in result.failures[0].message
    assignments = {"player": AgentAssignment("player")}
    plans = [EpisodePlan(f"e{index}", 0, index, "", index, assignments=assignments) for index in range(3)]
    # Who plays has no need to look at the game first.
    result = runner.play(plans, PlaySettings(runner.config.training_games()))
    assert [failure.reason for failure in result.failures] == [reason] * 3
    assert "the constructor" in result.failures[0].message


@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_a_game_that_fails_while_it_is_closed_costs_nothing(make_runner: MakeRunner, fault: str) -> None:
    runner = bad(make_runner, fault, "close")
    for level in range(env_runner._SETS_OF_GAMES + 2):
        runner.config.training_games = lambda level=level: [  # type: ignore[method-assign]
            GameConfig(env=f"{__name__}:BadGame", env_config={"fault": fault, "where": "close", "level": level})
        ]
        result = run(runner, 1)
        assert result.error is None and len(result.episodes) == 1
    assert len(runner.hooks.idle) == env_runner._SETS_OF_GAMES
    runner.stop()


def test_a_game_that_hangs_while_it_is_imported_made_or_closed_is_named(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("rllib_lmgame.envs.registry.CALL_LIMIT_S", 0.2)
    monkeypatch.setattr(game_calls, "CALL_LIMIT_S", 0.2)
    (tmp_path / "sleeping_game.py").write_text("import threading\nthreading.Event().wait()\n")
    for _ in range(2):  # The import goes on.
        with pytest.raises(ConfigError, match=r"importing 'sleeping_game' of game 'sleeping_game:Mine' .* than 0.2 s"):
            registry.load_factory(registry.game_spec("sleeping_game:Mine"))
    monkeypatch.setattr(BadGame, "misbehave", lambda game: HANG.wait())
    game = f"{__name__}:BadGame"
    with pytest.raises(ConfigError, match=r"BadGame: the constructor took longer"):
        collected(game, {"fault": "hang", "where": "constructor"}, player="random")
    game_calls.close_games([make_session(game, {"where": "close"})], 0.0)
    assert "BadGame did not close within 0 s and is left behind" in caplog.text


def test_an_episode_that_takes_too_long(make_runner: MakeRunner, limits: dict[Any, asyncio.Timeout]) -> None:
    async def answer(request: Any) -> str:
        if request.request_id.startswith("t-1-1/"):
            limits[asyncio.current_task()].reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return "Up"

    result = run(make_runner(answer=answer, rollouts={"episode_timeout_s": LIMIT_S}), 3)
    assert [(failure.plan.index, failure.reason) for failure in result.failures] == [(1, "timeout")]
    assert "episode_timeout_s=600" in result.failures[0].message
    assert len(result.summaries) == 2


def test_players_that_talk_nonsense(make_runner: MakeRunner) -> None:
    runner = make_runner(
        players={
            "policies": {"player": {}, "other": {"player": f"{__name__}:Silent"}},
            "policy_mapping_fn": {"player": "other"},
        }
    )
    result = run(runner, 2)
    assert [failure.reason for failure in result.failures] == ["env_error"] * 2
    assert "Silent played None" in result.failures[0].message


class Silent:
    def act(self, *args: Any) -> None:
        return None


def test_calls_of_trusted_games_stay_in_the_thread_and_others_do_not() -> None:
    async def threads() -> list[bool]:
        here = threading.current_thread()
        return [
            await GameCalls("g", trusted, LIMIT_S)("look", lambda: threading.current_thread() is here)
            for trusted in (True, False)
        ]

    assert asyncio.run(threads()) == [True, False]


@pytest.mark.parametrize("loop_ends", [False, True])
def test_a_game_that_is_built_too_late_is_closed(monkeypatch: pytest.MonkeyPatch, loop_ends: bool) -> None:
    """The rollout ends while a game of others is in its constructor."""
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(20)
        return SimpleNamespace(game_id="slow", close=closed.set)

    async def whole() -> None:
        task = asyncio.ensure_future(game_calls.open_session(GameConfig(env="slow", env_config={}), 60.0))
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        if not loop_ends:
            go_on.set()
            assert await asyncio.to_thread(closed.wait, 20)

    monkeypatch.setattr(game_calls, "make_session", slow)
    monkeypatch.setattr(game_calls, "game_spec", lambda name: SimpleNamespace(own=False))
    asyncio.run(whole())
    go_on.set()
    assert closed.wait(20)


def test_an_answer_that_comes_too_late_is_ignored() -> None:
    """The game's thread ends after its loop was closed: nothing is raised in it."""
    problems: list[Any] = []
    idle = set(threading.enumerate())
    game_calls._idle.clear()
    threading.excepthook, before = problems.append, threading.excepthook
    try:
        with pytest.raises(EpisodeFailed, match="took longer"):
            asyncio.run(GameCalls("g", False, 0.05)("step", HANG.wait))
        late = [thread for thread in threading.enumerate() if thread.name == "game-call" and thread not in idle]
        HANG.set()
        for thread in late:
            thread.join(10)
    finally:
        threading.excepthook = before
    assert late and not problems


class OddSession:
    """Not even a session's types are right."""

    game_id = "odd"
    trusted = True
    instructions = ""
    agent_ids = ("player",)
    roles = {"player": "player"}
    functions = ()
    program = None
    cooperative = False
    fault = ""

    def reset(self, seed: int) -> None: ...

    def to_act(self) -> tuple[str, ...]:
        return () if self.fault == "nobody" else ("player",)

    def observe(self, agent: str) -> Any:
        return "text" if self.fault == "bare" else Observation("text")

    def step(self, actions: Any) -> Any:
        return None if self.fault == "result" else StepResult({"player": float("nan")}, True, False)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nobody", "nobody is to act"),
        ("bare", "not text"),
        ("result", "NoneType, not a StepResult"),
        ("reward", "the reward of player is nan, not a finite number"),
    ],
)
def test_sessions_of_the_wrong_types(make_runner: MakeRunner, fault: str, message: str) -> None:
    runner = make_runner()
    session = OddSession()
    session.fault = fault
    runner.hooks.free_session = lambda game: session  # type: ignore[assignment, method-assign, return-value]
    result = run(runner, 1)
    assert [(failure.reason, message in failure.message) for failure in result.failures] == [("env_error", True)]


ENDS = [None, "left", "timeout", TypeError("of a player"), ConfigError("key", "is wrong")]
FAILED = [EpisodeFailed(reason, "it went wrong") for reason in StopReason]


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("end", [*ENDS, *FAILED], ids=repr)
def test_a_game_is_kept_only_if_it_cannot_be_to_blame(end: Any, trusted: bool) -> None:
    """After a whole episode, a failure of the engine, or when a game that is called in place is left between calls."""
    game, sessions, closed, asked = GameConfig(env="odd", env_config={}), Sessions(), threading.Event(), asyncio.Event()

    class Player(Seat):
        async def act(self, *_: Any) -> str:
            asked.set()
            if isinstance(end, str):
                await asyncio.Event().wait()
            if end is not None:
                raise end
            return "Up"

    async def how_it_ended() -> Any:
        options = TextRolloutOptions(episode_timeout_s=1e-6 if end == "timeout" else LIMIT_S)
        seats: dict[str, Seat] = {"player": Player("player", "player", "player")}
        episode = play_one(EpisodePlan("e", 0, 0, "", 0), game, lambda *_: seats, sessions, options)
        task = asyncio.ensure_future(episode)
        if end == "left":
            await asyncio.wait([asyncio.ensure_future(asked.wait())])
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    session: Any = OddSession()
    session.trusted, session.close = trusted, closed.set
    session.step = lambda actions: StepResult({"player": 1.0}, True, False)
    sessions.release(game, session)
    ended = asyncio.run(how_it_ended())
    reason = getattr(end, "reason", {"timeout": StopReason.TIMEOUT}.get(end, StopReason.ENV_ERROR))
    if end == "left" or isinstance(end, ConfigError):
        assert isinstance(ended, asyncio.CancelledError if end == "left" else ConfigError)
    else:
        assert (ended.reason if end else ended.stop_reason) == (reason if end else StopReason.GAME_OVER)
    kept = end is None or (end == "left" and trusted) or reason is StopReason.ENGINE_ERROR
    assert sessions.free_session(game) is (session if kept else None)
    assert closed.wait(0 if kept else 20) != kept


def test_threads_serve_one_call_after_another() -> None:
    """Many short calls in a row take few threads; a thread whose call hung takes no other."""
    used: set[int] = set()

    async def calls() -> None:
        call = GameCalls("g", False, LIMIT_S)
        for _ in range(50):
            used.add(await call("step", threading.get_ident))

    asyncio.run(calls())
    assert len(used) < 10  # a thread may be asked for before the one that has just answered is free
    with pytest.raises(EpisodeFailed, match="took longer"):
        asyncio.run(GameCalls("g", False, 0.05)("step", HANG.wait))
    assert asyncio.run(GameCalls("g", False, LIMIT_S)("step", lambda: 7)) == 7


def test_a_call_that_waits_for_its_turn_has_no_limit_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[asyncio.Timeout] = []
    real = asyncio.timeout
    monkeypatch.setattr(asyncio, "timeout", lambda delay: limits.append(real(delay)) or limits[-1])

    async def play() -> list[float | None]:
        loop = asyncio.get_running_loop()

        async def deadline() -> float | None:
            return limits[0].when()

        def look() -> float | None:
            return asyncio.run_coroutine_threadsafe(deadline(), loop).result()

        def step() -> list[float | None]:
            seen = [look()]
            with waiting():
                seen.append(look())
                with waiting():
                    pass
                seen.append(look())
            return [*seen, look()]

        return await GameCalls("g", False, LIMIT_S)("step", step)

    before, inside, still_inside, after = asyncio.run(play())
    assert inside is None and still_inside is None
    assert before is not None and after is not None and after > before


def test_a_wait_that_ends_is_not_the_games_fault() -> None:
    def step() -> None:
        raise SandboxBusyError("no sandbox was free")

    with pytest.raises(EpisodeFailed, match=r"g: step: no sandbox was free") as failed:
        asyncio.run(GameCalls("g", False, LIMIT_S)("step", step))
    assert failed.value.reason is StopReason.ENV_BUSY
    session = make_session("lmgame/CodeExecution-v0")
    session.env.step = lambda action: step()  # type: ignore[attr-defined]
    with pytest.raises(SandboxBusyError):
        session.step({"player": "x"})


@pytest.mark.parametrize(
    ("fault", "where", "says"),
    [
        ("hang", "every reset", "no episode could be played.*BadGame: reset took longer than env_step_timeout_s=600"),
        ("hang", "constructor", "BadGame: the constructor took longer than env_step_timeout_s=600"),
        ("raise", "constructor", "no episode could be played.*BadGame: the constructor: ValueError: boom"),
    ],
)
def test_a_game_that_gives_a_tiny_models_tokenizer_no_texts_is_named(limits, fault, where, says) -> None:
    game = {"env": f"{__name__}:BadGame", "env_config": {"fault": fault, "where": where}}
    rollouts = {"text_rollouts": {"env_step_timeout_s": LIMIT_S}}
    with pytest.raises(ConfigError, match=says):
        models.initial_model(LMGamePPOConfig().update_from_dict(game | rollouts), "player")
