"""SciWorld: splits, scores, the simulator's own paths, and Java processes, which take seconds to start, that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("scienceworld")

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.contract.splits import SPLITS
from rllib_lmgame.envs.games.adapted.sci_world import simulator as simulator_module
from rllib_lmgame.envs.games.adapted.sci_world.game import SciWorld
from rllib_lmgame.envs.games.adapted.sci_world.simulator import TASKS, require_java, splits_of
from tests.envs.begun import begun, played_by_expert

END_TIMEOUT_S = 20
EASY_TASK = "find-non-living-thing"

try:
    require_java()
    needs_java = pytest.mark.skipif(False, reason="")
except MissingDependencyError as missing:
    needs_java = pytest.mark.skipif(True, reason=str(missing))


@pytest.fixture(autouse=True)
def no_java_left():
    """A test that fails leaves no simulator to the next one."""
    yield
    for java, _ in list(simulator_module._shared.values()):
        java.stop()
    simulator_module._shared.clear()


def check_the_simulators_path() -> None:
    """It earns the whole score."""
    game = begun(SciWorld(task=EASY_TASK, max_turns=150), seed=1)
    total, info = played_by_expert(game)
    assert info["success"] and total == pytest.approx(1.0)
    game.close()


KNOWN = {  # Twelfths of the score: three for the way to the workshop, six for the focus, three for the box.
    EASY_TASK: (["go to hallway", "go to workshop", "focus on table", "move table to blue box"], [1, 2, 6, 3], True),
    "find-animal": (["go to hallway", "go to workshop", "focus on table"], [1, 2, -3], False),  # It is none.
}


def check_known_episodes() -> None:
    """They pay what the task's goals are worth, and a wrong focus fails it for good."""
    for task, (actions, twelfths, won) in KNOWN.items():
        game = begun(SciWorld(task=task, easy=True), seed=1)
        steps = [game.step(action) for action in actions]
        assert [step[1] * 12 for step in steps] == pytest.approx(twelfths)
        assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1][4]["success"] is won
        game.close()


@needs_java
@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_simulators_path_earns_the_whole_score_of_every_task(task: str) -> None:
    game = begun(SciWorld(task=task, max_turns=400, max_invalid_actions=None))
    total, info = played_by_expert(game)
    game.close()
    assert info["success"] and total == pytest.approx(1.0)


@needs_java
@pytest.mark.slow
def test_splits_are_the_simulators_own_lists() -> None:
    splits = splits_of("find-animal")
    counts = {split: sum(found == split for found in splits.values()) for split in SPLITS}
    assert counts == {"train": 150, "validation": 75, "test": 75}
    for split in SPLITS:
        game = SciWorld(task="find-animal", split=split)
        for seed in range(5):
            game.reset(seed=seed)
            assert splits[game._level.variation] == split
        game.close()


def check_what_is_no_action() -> None:
    """It is invalid and changes nothing."""
    game = SciWorld(task=EASY_TASK, show_rules=False)
    for text in (*("fly to the moon", "RESET TASK", "open door \ud800", "open\x00door"),):
        before, _ = game.reset(seed=0)
        observation, reward, _, _, info = game.step(text)
        assert (reward, info["invalid_action"]) == (-0.1, True), text
        assert observation.endswith(before), text
    game.close()


@needs_java
def test_games_in_one_process_do_not_disturb_each_other() -> None:
    def texts(game: SciWorld, other: SciWorld | None) -> list[str]:
        shown = [game.reset(seed=3)[0]]
        for action in ("open door to kitchen", "go to kitchen", "look around", "inventory"):
            if other is not None:
                other.step("look around")
            shown.append(game.step(action)[0])
        return shown

    one, two = SciWorld(task=EASY_TASK), SciWorld(task="boil")
    alone = texts(one, None)
    two.reset(seed=1)
    assert texts(one, two) == alone
    assert one.simulator.java_pid == two.simulator.java_pid
    one.close()
    check_the_simulators_path()
    check_what_is_no_action()
    check_known_episodes()
    two.close()


@pytest.mark.slow
@needs_java
def test_the_last_game_to_close_ends_java_and_the_next_starts_it_again() -> None:
    one, two = SciWorld(task=EASY_TASK), SciWorld(task=EASY_TASK)
    before = one.reset(seed=0)[0]
    two.reset(seed=0)
    java = psutil.Process(one.simulator.java_pid)
    one.close()
    assert java.is_running() and two.step("look around")[0]
    two.close()
    assert not java.is_running()
    assert one.reset(seed=0)[0] == before
    one.close()


@needs_java
@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(1)", f"os.kill(os.getpid(), {int(signal.SIGKILL)})"])
def test_java_ends_with_its_process_however_that_ends(end: str) -> None:
    code = (
        "import os, sys; from rllib_lmgame.envs.games.adapted.sci_world.simulator import Simulator\n"
        f"simulator = Simulator(); print(simulator.java_pid, flush=True); {end}"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    pid = int(done.stdout)
    if psutil.pid_exists(pid):
        psutil.Process(pid).wait(END_TIMEOUT_S)
    assert not psutil.pid_exists(pid)


@pytest.mark.slow
@needs_java
def test_a_simulator_that_dies_is_an_error_of_the_game_and_the_next_episode_plays() -> None:
    from rllib_lmgame.envs.contract.base import GameError

    game = SciWorld(task=EASY_TASK)
    before = game.reset(seed=0)[0]
    os.kill(game.simulator.java_pid, signal.SIGKILL)
    with pytest.raises(GameError, match="simulator failed"):
        game.step("look around")
    assert game.reset(seed=0)[0] == before
    game.close()


def test_missing_java_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependencyError, match="install a Java runtime"):
        SciWorld()
