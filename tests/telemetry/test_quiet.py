"""What other packages say is left out only where it begins as known noise does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rllib_lmgame.telemetry.quiet import NOISE, leave_out_noise, no_bars_for


@pytest.mark.parametrize("name", NOISE)
def test_known_noise_is_left_out_and_nothing_else(name: str) -> None:
    """By the logger's own filter: what its handlers and levels are depends on who has set up logging before."""
    noisy = logging.getLogger(name)
    leave_out_noise()
    count = len(noisy.filters)
    leave_out_noise()
    assert len(noisy.filters) == count

    def passes(message: str) -> bool:
        return bool(noisy.filter(noisy.makeRecord(name, logging.WARNING, __file__, 0, message, (NOISE[name],), None)))

    assert not passes("%s and so on")
    assert passes("The disk is full. %s")


def test_the_messages_are_still_those_of_ray() -> None:
    """A filter for words that Ray no longer says would be dead."""
    import ray.rllib.core.rl_module.rl_module as rl_module
    import ray.tune.trainable.trainable as trainable
    import ray.tune.utils.util as util

    assert "RLModule(config=[RLModuleConfig object])" in Path(rl_module.__file__).read_text()
    assert NOISE[trainable.logger.name] in Path(trainable.__file__).read_text()
    assert NOISE[util.logger.name] in Path(util.__file__).read_text()


def test_a_node_that_is_lost_prints_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Ray's own report and printing: without the last lines of the node's log."""
    from ray._private import process_watcher, utils, worker

    said: list[str] = []
    monkeypatch.setattr(utils, "publish_error_to_driver", lambda kind, message, **more: said.append(message))
    (tmp_path / "raylet.out").write_text("".join(f"[state-dump] Wait Last {i}\n" for i in range(40)))
    process_watcher.report_raylet_error_logs(str(tmp_path), None)
    leave_out_noise()
    leave_out_noise()
    worker.print_to_stdstream({"lines": [*said, "another"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    printed = capsys.readouterr().out  # Ray may print lines of before with them.
    assert "state-dump" in said[0] and "state-dump" not in printed
    assert "SIGKILL" in printed and "another" in printed


def test_bars_are_shown_for_downloads_alone(tmp_path: Path) -> None:
    from transformers.utils import logging as bars

    before = bars.is_progress_bar_enabled()
    with no_bars_for(tmp_path):
        assert not bars.is_progress_bar_enabled()
    with no_bars_for("some-hub/model"):
        assert bars.is_progress_bar_enabled() == before
    assert bars.is_progress_bar_enabled() == before
