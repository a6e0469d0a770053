"""Games, seat mappings and an algorithm that go wrong in one way each; found by import path, also in Ray's workers."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ray

from rllib_lmgame.algorithms.cluster.workers import foreach_learner
from rllib_lmgame.algorithms.ppo import LMGamePPO
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions
from rllib_lmgame.envs.support.listed_levels import ListedLevels


class Countdown(TextGame):
    """A sound game: count down from the level's number by typing ``less``."""

    instructions = "Type less."

    def levels(self, rng: random.Random) -> Iterator[int]:
        while True:
            yield rng.randint(1, 9)

    def level_key(self, level: int) -> str:
        return str(level)

    def split_of_level(self, digest: str, level: int) -> str:
        return ("train", "validation", "test")[level % 3]

    def start(self, level: int) -> None:
        self.number = level

    def board(self) -> str:
        return f"{self.number} left"

    def legal_actions(self) -> tuple[str, ...]:
        return ("less",)

    def read_move(self, text: str) -> Hashable:
        if text != "less":
            raise InvalidAction("type less.")
        return text

    def play_move(self, move: Hashable) -> float:
        self.number -= 1
        return 1.0

    @property
    def success(self) -> bool:
        return self.number == 0

    def solve(self) -> list[str]:
        return ["less"] * self.number


class Listed(ListedLevels, Countdown):
    """A sound game whose levels are items of a list."""

    listed = tuple(range(1, 900))


class Raises(Countdown):
    """Raises at some levels."""

    def read_move(self, text: str) -> Hashable:
        if self.number == 3:
            raise KeyError("the third square")
        return super().read_move(text)


class AlwaysRaises(Countdown):
    def read_move(self, text: str) -> Hashable:
        raise KeyError("the third square")


class KillerOptions(TextGameOptions):
    pid_file: str = option("", "File that holds the process to be killed by the first move; removed then.")


def kill_once(pid_file: str) -> bool:
    """Kill the process (``own``: this one) named in a file, if the file is still there."""
    taken = Path(pid_file + ".taken")
    try:
        os.rename(pid_file, taken)
    except FileNotFoundError:
        return False
    text = taken.read_text()
    os.kill(os.getpid() if text == "own" else int(text), signal.SIGKILL)
    return True


class Killer(Countdown):
    """Kills a process in the middle of play, once."""

    Options: ClassVar[type[TextGameOptions]] = KillerOptions

    def read_move(self, text: str) -> Hashable:
        kill_once(self.options.pid_file)
        return super().read_move(text)


def pairing(agent_id: str, episode: Any = None, *, agent_ids: Sequence[str] = (), seed: int = 0, **kwargs: Any) -> str:
    """Two trained policies, each against the other, a frozen one or a scripted one."""
    pairs = (("first", "second"), ("second", "first"), ("first", "frozen"), ("scripted", "second"))
    return pairs[seed % len(pairs)][list(agent_ids).index(agent_id)]


class LosesALearner(LMGamePPO):
    """Kills its second learner before the second PPO iteration, once, if the file ``<pid_file>.learner`` is there."""

    def training_step(self) -> None:
        pid_file = str(self.config.env_config["pid_file"]) + ".learner"
        if self._rl_iteration == 1 and Path(pid_file).exists():
            pids = [result.get() for result in self.learner_group.foreach_learner(lambda learner: os.getpid())]
            Path(pid_file).write_text(str(pids[1]))
            kill_once(pid_file)
        super().training_step()


class TellsNodes(LMGamePPO):
    """Writes the ids of its engine's and its learner's node into the file ``$NODES_FILE`` after each iteration."""

    def step(self) -> dict[str, Any]:
        result = super().step()
        (engine,) = self.engine_groups["player"].names
        nodes = {"engine": ray.get(ray.get_actor(engine).__ray_call__.remote(node_here))}
        nodes["learner"] = foreach_learner(self.learner_group, node_here)[0]
        Path(os.environ["NODES_FILE"]).write_text(json.dumps(nodes))
        return result


def node_here(_: object) -> str:
    return str(ray.get_runtime_context().get_node_id())


class DiesWithItsDriver(LMGamePPO):
    """Kills the run, its own process and the driver, once, at the point that the file ``die`` in the directory of the
    storage names, of the third PPO iteration: in the middle of a checkpoint's ``write`` or ``copy`` into the trial's
    directory, of a weight ``push``, or of a ``snapshot`` of the league.
    """

    def training_step(self) -> None:
        order = self.trial_directory().parent.parent / "die"
        if self._rl_iteration == 2 and order.exists():
            self._prepare_death(*order.read_text().split())
            order.unlink()
        super().training_step()

    def _prepare_death(self, point: str, driver: str) -> None:
        from ray.train._internal import storage

        from rllib_lmgame.algorithms import league
        from rllib_lmgame.algorithms.checkpoints import manifest
        from rllib_lmgame.inference import weights as transports

        def die(*args: Any, **kwargs: Any) -> None:
            if point == "copy":
                names = sorted(path.name for path in Path(kwargs["source"]).iterdir())
                for name in names[: len(names) // 2]:
                    half = Path(kwargs["source"]) / name
                    if half.is_file():
                        (Path(kwargs["destination"]) / name).write_bytes(half.read_bytes()[: half.stat().st_size // 2])
            os.kill(int(driver), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

        places = {
            "write": (manifest, "write_manifest"),
            "copy": (storage, "_pyarrow_fs_copy_files"),
            "push": (transports, "gather"),
            "snapshot": (league, "move_directory"),
        }
        setattr(*places[point], die)
