"""Ray's report of a process killed for want of memory, in one line."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rllib_lmgame.experiments.results.outcome import cause
from rllib_lmgame.inference.serving.oom import oom_line

REPORT = """ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. \
Memory on the node (IP: 10.0.0.2) was 22.73GB used / 23.54GB limit (0.965)
OOM kill reason: Memory usage 3993210880B exceeded threshold of 3715645696B (14.7% of 25276502016B limit)
Ray killed 1 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Actor(58fa): job ID=01, lease ID=00, task name={task}, required resources={{}}, pid=23473, \
actual memory used=5.04GB, worker ID=0f)
]
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
13414\t0.67\t.venv/bin/python
Refer to the documentation on how to address the out of memory issue
"""


@pytest.mark.parametrize(
    ("task", "what", "key"),
    [
        ("lmgame-player-0:EngineActor.update_weights", "an engine", "config.inference.kv_cache_memory_mb"),
        ("_WrappedExecutable.__init__", "a learner", "max_tokens_per_microbatch"),
        ("LMGamePPO.train", "the trial's own process", "head_chunk_tokens"),
        ("TextGameEnvRunner.apply", "an env runner", "config.num_env_runners"),
        ("mine", "mine", "what it holds"),
    ],
)
def test_the_process_what_it_held_and_what_to_lower_are_named(task, what, key):
    line = oom_line(f"Traceback\n{REPORT.format(task=task)}")
    assert line is not None and "\n" not in line and len(line) < 400
    assert f"killed {what} (pid 23473), which held 5.04 GB" in line and key in line


def test_other_texts_are_left_alone():
    assert oom_line("KeyError: third square") is None
    unknown = oom_line("2 worker(s) were killed due to the node running low on memory.")
    assert unknown is not None and "lower" in unknown
    card = "CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has a total capacity of 79 GiB of which 1.31 GiB is free"
    told = f"E: {card}. Including non-PyTorch memory, this process has 77 GiB in use. (...) try PYTORCH_ALLOC_CONF=\n"
    assert str(oom_line(told)).startswith(f"{card}; lower config.training.max_tokens_per_microbatch, ")


def test_the_cause_of_a_trial_is_that_of_its_last_failure(tmp_path):
    file = tmp_path / "error.txt"
    trial = SimpleNamespace(error_file=str(file))
    file.write_text(f"Failure # 1 (occurred at 1)\n{REPORT.format(task='EngineActor')}")
    assert cause(trial) == oom_line(REPORT.format(task="EngineActor"))
    file.write_text(f"{file.read_text()}\nFailure # 2 (occurred at 2)\nTraceback\n  here\nKeyError: third square\n")
    assert cause(trial) == "KeyError: third square"
    file.write_text(
        "Failure # 1 (occurred at 1)\nTraceback\nOSError: [Errno 28] Error writing bytes to file. [errno 28] No "
        "space left on device\n"
    )
    assert "disk is full" in cause(trial) and "--resume" in cause(trial)


def test_a_trial_whose_process_is_killed_says_so_and_how_to_go_on(tmp_path):
    """By Ray's own errors: they name actors, and end with causes of every kind of exit."""
    from ray.core.generated.common_pb2 import ActorDiedErrorContext
    from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

    context = ActorDiedErrorContext(
        error_message="The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR ...",
        class_name="LMGamePPO",
        actor_id=bytes(16),
        pid=4711,
    )
    file = tmp_path / "error.txt"
    trial = SimpleNamespace(error_file=str(file))
    for error, pid in (
        (ActorDiedError(context), " (pid 4711)"),
        (ActorUnavailableError("Socket closed", bytes(16)), ""),
    ):
        file.write_text(f"Failure # 1 (occurred at 1)\n{error}\n")
        assert cause(trial).startswith(f"the trial's own process{pid} ended") and "--resume" in cause(trial)
    traceback = (
        f"ray::LMGamePPO.train()\n{ActorDiedError(context)}\nrllib_lmgame.base.errors.LearnerError: learner 0 of 2 died"
    )
    file.write_text(f"Failure # 1 (occurred at 1)\n{RayTaskError('train', traceback, ValueError())}\n")
    assert cause(trial).endswith("LearnerError: learner 0 of 2 died")


def test_tune_takes_a_trial_killed_for_want_of_memory_as_failed():
    """Left alone it ends the whole run."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import OutOfMemoryError, RayActorError

    from rllib_lmgame.experiments.run.callbacks import oom_is_a_failure

    errors: list[Exception] = []
    actor = SimpleNamespace(actor_id=1, _on_error=lambda tracked, error: errors.append(error))
    task = SimpleNamespace(_tracked_actor=actor, _on_error=None)
    manager = SimpleNamespace(_failed_actor_ids=set(), _cleanup_actor=lambda tracked_actor: None)
    killed = OutOfMemoryError(REPORT.format(task="LMGamePPO.train"))
    with pytest.raises(RuntimeError, match="unexpected"):
        RayActorManager._actor_task_failed(manager, task, killed)
    with oom_is_a_failure():
        RayActorManager._actor_task_failed(manager, task, killed)
    (error,) = errors
    assert isinstance(error, RayActorError) and oom_line(str(error)) == oom_line(str(killed))
