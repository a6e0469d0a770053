"""One run at a time in one directory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.runner import _locked as locked

HOLDER = """
import sys, time
from rllib_lmgame.base.lock import locked

with locked(sys.argv[1], "", "", ""):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_run_is_refused_and_the_first_named(tmp_path):
    directory = str(tmp_path / "mine")
    with locked(directory):
        with pytest.raises(
            ConfigError, match=rf"'mine' is already writing .*process {os.getpid()} on .*--experiment-name.*--resume"
        ):
            locked(directory).__enter__()
        with locked(str(tmp_path / "other")):
            pass
    with locked(directory):
        pass


def test_a_run_that_was_killed_holds_nothing(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(ConfigError, match=f"process {holder.pid} "):
        locked(str(tmp_path)).__enter__()
    holder.kill()
    holder.wait()
    with locked(str(tmp_path)):
        pass


def test_a_directory_made_for_the_lock_alone_goes_with_it(tmp_path):
    for name, content in (("refused", ()), ("there before", ()), ("begun", ("settings.json",))):
        directory = tmp_path / name
        if name == "there before":
            directory.mkdir()
        with pytest.raises(RuntimeError), locked(str(directory)):
            for file in content:
                (directory / file).touch()
            raise RuntimeError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "there before"]
