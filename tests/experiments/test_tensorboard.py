"""What TensorBoard is shown of a trial, read back from its event files."""

from __future__ import annotations

import copy
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tensorboardX.record_writer import RecordWriter

from rllib_lmgame.experiments.results import tensorboard
from rllib_lmgame.experiments.results.tensorboard import TensorBoardFile, add_heldout, evaluation_text, tags_of
from rllib_lmgame.settings.algorithms import OWN
from rllib_lmgame.telemetry.metrics import EPISODE_NAMES, LEAGUE_NAMES, LEARNER_NAMES, PHASES, RESULT_HEADS

GAMES = {"lmgame_Kuhn": {"num_episodes": 4, "success_rate": 0.25}, "lake": {"num_episodes": 8, "success_rate": 0.5}}
EVALUATION = {
    "env_runners": {
        "num_episodes": 12,
        "success_rate": 0.375,
        "levels": 9.0,
        "success_low": 0.2,
        "success_high": 0.6,
        "episode_return_mean": 1.5,
        "format_error_rate": 0.125,
        "games": GAMES,
    },
    "exploitability": 0.0123,
    "num_healthy_workers": 1,
}
HOSTILE = "```\n</pre><script>alert(1)</script> ![x](http://other/x.png)\n```"


class Trial(SimpleNamespace):
    """As much of a Tune trial as the logger looks at; hashable like one."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def init_local_path(self) -> None:
        pass


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(local_path=str(tmp_path), path=str(tmp_path), trial_id="t", evaluated_params={"lr": 0.1})


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "phase": 1.0,
        "own": 2.0,
        "env_runners": {"success_rate": 0.25, "episode_return_mean": 1.0, "games": {"lake": {"success_rate": 0.25}}},
        "learners": {"player": {"entropy": 0.5, "policy_loss": 0.1}, "__all_modules__": {"entropy": 0.5}},
        "timers": {"rollout_s": 1.0, "training_step": 2.0},
        **more,
    }


def logged(trial: Trial, *results: Mapping[str, Any]) -> None:
    file = TensorBoardFile()
    for each in results:
        file.log_trial_result(each["training_iteration"], trial, dict(each))
    file.log_trial_end(trial)


def events_of(directory: Path) -> EventAccumulator:
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0, "images": 0, "scalars": 0})
    events.Reload()
    return events


def texts(events: EventAccumulator, tag: str) -> dict[int, str]:
    """Step -> text."""
    found = events.Tensors(f"{tag}/text_summary")
    return {event.step: event.tensor_proto.string_val[0].decode() for event in found}


def test_numbers_stand_in_groups_with_those_to_look_at_first(trial, tmp_path):
    logged(trial, result(1), result(2))
    events = events_of(tmp_path)
    assert {tag for tag in events.Tags()["scalars"] if not tag.startswith("_hparams_")} == {
        *("1_first/success_rate", "1_first/entropy/player"),
        *("2_success_and_return/success_rate", "2_success_and_return/episode_return_mean"),
        *("5_update/player/entropy", "5_update/player/policy_loss", "7_speed_and_size/rollout_s", "8_progress/phase"),
        *("each_game/lake/success_rate", "others/own", "rllib/learners/__all_modules__/entropy"),
        "rllib/timers/training_step",
    }
    assert [(event.step, event.value) for event in events.Scalars("1_first/success_rate")] == [(1, 0.25), (2, 0.25)]


def test_whatever_is_reported_there_are_a_dozen_groups():
    names = [
        *(f"{above}env_runners/{name}/x" for name in EPISODE_NAMES for above in ("", "evaluation/")),
        *(f"learners/player/{name}" for name in LEARNER_NAMES),
        *(f"timers/{name}" for name in PHASES),
        *(f"league/{name}" for name in LEAGUE_NAMES),
        *(f"{head}/x" for head in RESULT_HEADS),
        *{name for entry in OWN.values() for name in entry.metrics},
        "anything",
    ]
    tags = {name: tags_of(f"ray/tune/{name}")[0] for name in names}
    assert len(set(tags.values())) == len(set(names)), "two numbers have one tag"
    assert [name for name, tag in tags.items() if tag.startswith("others/")] == ["anything"]
    groups = {tag.partition("/")[0] for tag in tags.values()}
    assert len(groups) <= 14 and not groups & {"env_runners", "learners", "evaluation", "timers", "ray"}, groups


def test_an_evaluation_is_a_table_and_a_figure(trial, tmp_path):
    nothing = {"env_runners": {"num_episodes": math.nan}}
    logged(trial, result(1, evaluation=EVALUATION), result(2, evaluation=nothing), result(3, evaluation=EVALUATION))
    events = events_of(tmp_path)
    tables = texts(events, "evaluation")
    assert sorted(tables) == [1, 3]
    lines = tables[3].splitlines()
    assert lines[2] == "| all | 12 | 9 | 0.375 | 0.200 - 0.600 | +1.50 | 0.125 |"
    assert [line.split(" | ")[0] for line in lines[3:5]] == ["| lmgame_Kuhn", "| lake"]
    assert "| exploitability | 0.0123 |" in lines and "num_healthy_workers" not in tables[3]
    assert markdown_to_safe_html(tables[3]).count("<tr>") == 6
    pytest.importorskip("matplotlib")
    drawn = events.Images("evaluation")
    assert [image.step for image in drawn] == [1, 3]
    assert drawn[0].encoded_image_string != drawn[1].encoded_image_string and drawn[0].width > 500


def test_a_game_whose_name_is_no_formula_stands_in_the_figure():
    pytest.importorskip("matplotlib")
    assert tensorboard._drawn({"$$": {1: 0.5}, "$x^$": {1: 0.25}}).shape[2] in (3, 4)


def test_an_iteration_that_is_played_again_stands_once_in_the_figure(trial, monkeypatch):
    drawn: list[Any] = []
    pixels = np.zeros((2, 2, 3), np.uint8)
    monkeypatch.setattr(tensorboard, "_drawn", lambda evaluated: drawn.append(copy.deepcopy(evaluated)) or pixels)
    worse = {**EVALUATION, "env_runners": {**EVALUATION["env_runners"], "success_rate": 0.125, "games": {}}}
    played = ((1, worse), (2, worse), (3, worse), (2, EVALUATION), (4, worse))
    logged(trial, *(result(iteration, evaluation=each) for iteration, each in played))
    assert [list(each["all"]) for each in drawn] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert drawn[-1]["all"] == {1: 0.125, 2: 0.375, 3: 0.125, 4: 0.125}


def test_games_of_two_sides_say_who_won():
    rates = {"win_rate": {"p": {"x": 0.5}}, "draw_rate": {"p": {"x": 0.25}}, "loss_rate": {"p": {"x": 0.25}}}
    text = evaluation_text({"evaluation": {"env_runners": {"num_episodes": 4, **rates}, "a|b*": 1.0}})
    played, measured = ["| game | episodes | win-draw-loss |", "| all | 4 | p x 0.50-0.25-0.25 |"], "| a?b? | 1.0000 |"
    assert text.splitlines()[::2] == [*played, "| measure | value |", measured]
    assert evaluation_text({"evaluation": {}}) == evaluation_text({"evaluation": 3}) == evaluation_text({}) == ""


def test_a_game_is_text_whatever_a_model_wrote(trial, tmp_path):
    steps = [{"observations": {"player": "board"}, "actions": {"player": HOSTILE}, "rewards": {"player": 1.0}}]
    seat = {"agent_id": "player", "outcome": None, "success": True, "return": 1.0}
    record = {"steps": steps, "final_observations": {"player": HOSTILE}, "stop_reason": "game_over"}
    (tmp_path / "episodes").mkdir()
    log = tmp_path / "episodes" / "runner-1.jsonl"
    log.write_text(json.dumps(record | {"trajectories": [seat]}) + "\n" + '{"cut')
    logged(trial, *map(result, range(1, 31)))
    shown = texts(events_of(tmp_path), "sample_game")
    assert sorted(shown) == [*range(1, 12), 13, 15, 17, 19, 21, 24, 27, 30]  # Less and less often.
    page = markdown_to_safe_html(shown[1])
    assert "ended: game over" in page and "http://other/x.png" in page
    assert "<img" not in page and "<script" not in page


def test_a_full_disk_costs_the_rest_of_the_file(trial, tmp_path, monkeypatch, caplog):
    whole, left = RecordWriter.write, iter(range(12))

    def write(self: Any, content: bytes) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, content)

    monkeypatch.setattr(RecordWriter, "write", write)
    logged(trial, *map(result, range(1, 31)))
    assert [record.getMessage() for record in caplog.records].count(
        "TensorBoard's file ends here, it cannot be written: [Errno 28] No space left on device"
    ) == 1
    assert events_of(tmp_path).Scalars("8_progress/phase")[-1].step == 1
    successes = {"after training": {"lmgame/Sokoban-v0 1 a": 1.0}}
    (tmp_path / "report.json").write_text(json.dumps({"successes": successes}))
    add_heldout(tmp_path)


def test_held_out_levels_are_added_when_a_run_is_over(trial, tmp_path):
    logged(trial, result(1), result(2))
    add_heldout(tmp_path)
    assert "tensors" in events_of(tmp_path).Tags() and not events_of(tmp_path).Tags()["tensors"]
    (tmp_path / "result.json").write_text("".join(json.dumps(result(i)) + "\n" for i in (1, 2)))
    report = tmp_path / "report.json"
    for damaged in (
        "{",
        '{"successes": 3}',
        '{"successes": {"after training": {"a": "b"}}}',
        f'{{"successes": {{"x": {{"a": {"9" * 400}}}}}}}',
    ):
        report.write_text(damaged)
        add_heldout(tmp_path)  # It costs nothing else.
    report.write_text(
        json.dumps({"successes": {"after training": {"lmgame/Sokoban-v0 1 a": 1.0, "lmgame/Sokoban-v0 2 b": 0.0}}})
    )
    add_heldout(tmp_path)
    events = events_of(tmp_path)
    (table,) = texts(events, "held_out_levels").values()
    assert "| after training | 2 | 2 | 0.500 |" in table
    assert events.Scalars("8_progress/phase")[-1].step == 2
    pytest.importorskip("matplotlib")
    assert [image.step for image in events.Images("learning_curve")] == [2]
