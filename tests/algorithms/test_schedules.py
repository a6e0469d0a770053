"""Options that change during a run: their values, what is refused, and where they act."""

from __future__ import annotations

import json
import math
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.algorithms import models, ppo
from rllib_lmgame.algorithms.action_values import ActionValueStage, LMGameILQLConfig
from rllib_lmgame.algorithms.ppo import LMGamePPO, LMGamePPOConfig
from rllib_lmgame.algorithms.scheduled import check_followed, occurring, scheduled_games, schedules_of
from rllib_lmgame.algorithms.sft import LMGameSFTConfig, SupervisedStage
from rllib_lmgame.algorithms.validation import check_schedules
from rllib_lmgame.base.errors import CheckpointError, ConfigError
from rllib_lmgame.base.group import Group, Scheduled, option
from rllib_lmgame.base.schedule import ScheduleOptions, Schedules, interpolate, number_at, read_schedule
from rllib_lmgame.config.algorithms import PPO, AlgorithmEntry, Section
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.rollouts.item_order import ItemOrder
from rllib_lmgame.rollouts.options import OverlongOptions
from rllib_lmgame.rollouts.records import PlayResult
from tests.in_place import in_place

SOKOBAN = {"env": "lmgame/Sokoban-v0", "language_model": {"model": "tiny"}}
TWO_GAMES = {"games": ["lmgame/Sokoban-v0", {"env": "lmgame/FrozenLake-v0", "weight": 3}]}
SUCCESS = "env_runners/success_rate"
few = settings(max_examples=50)
values = st.floats(-100, 100)
points = st.lists(st.tuples(st.integers(-5, 40), values), min_size=1, max_size=5, unique_by=lambda point: point[0]).map(
    sorted
)
some_rates = [0.1, 0.2, 0.3, 0.5, 0.6, 0.9, math.nan, None]
"""Among them all of the thresholds below."""
rates = st.lists(st.one_of(st.sampled_from(some_rates), st.floats(0, 1)), max_size=30)


def config_of(schedules, **settings) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(in_place({**SOKOBAN, **settings}, schedules))


def result_of(rate: float | None, iteration: int = 0):
    return {"rl_iteration": iteration, "env_runners": {} if rate is None else {"success_rate": rate}}


@few
@given(points, st.floats(-10, 50))
def test_values_along_points(points: list[tuple[int, float]], at: float) -> None:
    positions, heights = zip(*points, strict=True)
    assert interpolate(points, at) == pytest.approx(np.interp(at, positions, heights), abs=1e-9)
    assert min(heights) <= interpolate(points, at) <= max(heights)
    reached = [height for position, height in points if position <= at]
    assert interpolate(points, at, "step") == (reached[-1] if reached else heights[0])


def stage_by_hand(rates: list[float | None], above: float, below: float | None, needed: int, last: int) -> int:
    """The stage after these results, by the words of the documentation."""
    stage, row = 0, []
    for rate in rates:
        if rate is None or math.isnan(rate):
            continue
        row.append(rate)
        latest = row[-needed:]
        if len(latest) == needed and all(number > above for number in latest):
            stage, row = min(stage + 1, last), []
        elif len(latest) == needed and below is not None and all(number < below for number in latest):
            stage, row = max(stage - 1, 0), []
    return stage


@few
@given(rates, st.integers(1, 3), st.booleans(), st.integers(1, 4))
def test_stages_by_success(rates: list[float | None], needed: int, back: bool, count: int) -> None:
    below = 0.3 if back else None
    stages = ScheduleOptions(
        by=SUCCESS, values=[5.0 * n for n in range(count)], above=0.6, below=below, iterations=needed
    )
    schedules = Schedules({"x": stages})
    for number, rate in enumerate(rates):
        assert schedules.values()["x"] == 5.0 * stage_by_hand(rates[:number], 0.6, below, needed, count - 1)
        schedules.observe(result_of(rate))


@pytest.mark.parametrize(("value", "whole"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.499, 2), (-0.5, 0), (-1.5, -1), (3, 3)])
def test_of_two_nearest_whole_numbers_the_higher_one_is_taken(value: float, whole: int) -> None:
    schedules = Schedules({"x": ScheduleOptions(points=[[0, value]])}, ["x"])
    assert schedules.values() == {"x": whole} and type(schedules.values()["x"]) is int


def test_before_the_first_result_the_first_point_counts() -> None:
    """A counter is 0 then; of any other number nothing is known."""
    points = [[-30, 5.0], [-10, 9.0], [10, 11.0]]
    schedules = Schedules({"x": ScheduleOptions(by=SUCCESS, points=points), "y": ScheduleOptions(points=points)})
    assert schedules.values() == {"x": 5, "y": 10}


@few
@given(rates, st.integers(0, 30), points)
def test_a_resumed_run_goes_on_bit_for_bit(rates, cut, points) -> None:
    entries = {
        "a": ScheduleOptions(points=[list(point) for point in points]),
        "b": ScheduleOptions(by=SUCCESS, points=[[0.1, -1.0 / 3], [0.9, 7.0]]),
        "c": ScheduleOptions(by=SUCCESS, values=[1, 2, 3], above=0.5, below=0.2, iterations=2),
        "d": ScheduleOptions(by="env_steps", points=[[0, 1], [1e6, 1 / 7]]),
    }

    def run(schedules: Schedules, first: int, rates: list[float | None]) -> list[dict[str, float]]:
        seen = []
        for number, rate in enumerate(rates, first):
            seen.append(schedules.values())
            schedules.observe(
                {**result_of(rate, number + 1), "num_env_steps_sampled_lifetime": 37_123.0 * (number + 1)}
            )
        return seen

    whole = Schedules(entries, ["c"])
    expected = run(whole, 0, rates)
    first = Schedules(entries, ["c"])
    before = run(first, 0, rates[:cut])
    second = Schedules(entries, ["c"])
    second.set_state(json.loads(json.dumps(first.state())))
    assert before + run(second, len(before), rates[cut:]) == expected
    assert second.values() == whole.values()


def test_a_tiny_tokenizer_reads_few_of_many_ways_of_a_game(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(schedules):
        config = LMGamePPOConfig().update_from_dict(in_place(SOKOBAN, schedules))
        played = []

        def make(env: str, env_config):
            played.append(env_config)
            return types.SimpleNamespace(close=lambda: None, trusted=True, game_id=env)

        monkeypatch.setattr("rllib_lmgame.rollouts.game_calls.make_session", make)
        monkeypatch.setattr(models, "game_corpus", lambda session, seed: ["text"])
        models.initial_model(config, "player")
        return played, len(scheduled_games(config))

    played, all_of_them = read({"env_config.max_actions": {"points": [[0, 25], [10, 35]]}})
    assert len(played) == all_of_them == 11, "few: all of them"
    two = {
        "env_config.max_actions": {"points": [[0, 25], [500, 525]]},
        "env_config.max_turns": {"points": [[0, 5], [500, 505]], "by": "env_steps"},
    }
    played, all_of_them = read(two)
    assert all_of_them > 200 and len(played) <= 5 * models.CORPUS_VARIANTS
    assert played == read(two)[0]
    for name, ends in (("max_actions", {25, 525}), ("max_turns", {5, 505})):
        assert ends <= {env_config.get(name) for env_config in played}, name


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"stages": {"lr": "x"}}, "stages.lr is 'x'; it must be a finite number"),
        ({"stages": {"lr": math.nan}}, "stages.lr is nan"),
        ({"seen": {"rl_iteration": math.inf}}, "seen.rl_iteration is inf"),
        ({"in_a_row": {"lr": 10**400}}, "in_a_row.lr is 1"),
        ({"in_a_row": [1]}, r"in_a_row is \[1\]; it must be a mapping"),
        ([], r"it is \[\]; it must be a mapping"),
    ],
)
def test_a_damaged_state_of_schedules_is_told(state, said) -> None:
    schedules = Schedules({"lr": ScheduleOptions(by=SUCCESS, values=[1.0, 2.0], above=0.5)})
    with pytest.raises(CheckpointError, match=f"state of the schedules is damaged: {said}"):
        schedules.set_state(state)


@pytest.mark.parametrize(
    ("entry", "path", "words"),
    [
        ({}, "x", "either `points` or `values`"),
        ({"points": [[0, 1]], "values": [1], "above": 1}, "x", "either"),
        ({"points": [[0, 1], [5]]}, "x.points[1]", "[at, value]"),
        ({"points": [[5, 1], [0, 2]]}, "x.points[1]", "0 comes before 5"),
        ({"values": [1, 2]}, "x", "needs `above`"),
        (
            {"values": [1, 2], "above": 0.5, "below": 0.5, "by": "env_runners/success_rate"},
            "x.below",
            "less than above",
        ),
        ({"values": [], "above": 0.5}, "x.values", "at least one"),
        ({"points": [[0, 1]], "above": 0.5}, "x.above", "belongs to `values`"),
        ({"values": [1, 2], "above": 0.5, "type": "step"}, "x.type", "belongs to `points`"),
    ],
)
def test_what_is_no_schedule_is_refused(entry, path, words) -> None:
    with pytest.raises(ConfigError) as caught:
        read_schedule(entry, "x")
    assert caught.value.path == path
    assert words in caught.value.message


def test_stages_that_are_added_on_resume_begin_where_others_of_their_rule_stand() -> None:
    """They are checked as going together: no other combination has been."""
    rule = {"by": SUCCESS, "above": 0.5}
    first = schedules_of(config_of({"language_model.max_tokens_per_turn": {"values": [10, 30], **rule}}))
    first.observe(result_of(0.9))
    both = {
        "language_model.max_tokens_per_turn": {"values": [10, 30], **rule},
        "language_model.max_tokens_per_episode": {"values": [20, 40], **rule},
        "gamma": {"values": [0.9, 1], "by": SUCCESS, "above": 0.6},
    }
    resumed = schedules_of(config_of(both))
    resumed.set_state(first.state())
    assert list(resumed.values().values()) == [0.9, 30, 40]


def test_on_resume_fewer_stages_go_on_with_the_last() -> None:
    rule = {"by": SUCCESS, "above": 0.5, "below": 0.2}
    first = Schedules({"a": ScheduleOptions(values=[1, 2, 3, 4], **rule)})
    for _ in range(3):
        first.observe(result_of(0.9))
    resumed = Schedules({"a": ScheduleOptions(values=[1, 2], **rule)})
    resumed.set_state(first.state())
    assert resumed.values() == {"a": 2}
    resumed.observe(result_of(0.1))
    assert resumed.values() == {"a": 1}


def test_what_a_callback_reports_is_followed() -> None:
    """Callbacks write into a result after the iteration; so does Tune, with the time."""

    def report(*, result, **_) -> None:
        result["env_runners"] |= {"mine": np.float32(0.9)}

    ways = {"gamma": "env_runners/mine", "lambda": "time_total_s"}
    config = config_of({key: {"by": by, "values": [0.5, 1], "above": 0.1} for key, by in ways.items()})
    loop = Loop(config.callbacks(on_train_result=report))
    check_schedules(loop.config)
    loop.callbacks, loop._metrics_callback_on_train_result_time = [], types.SimpleNamespace(observe=lambda _: None)
    loop._result_logger = types.SimpleNamespace(on_result=lambda result: None)
    for phase, value in ((0, 0.5), (1, 1.0)):
        loop.log_result({"phase": phase, "time_total_s": 2.5, "env_runners": {}})
        assert loop._schedules.values() == {"gamma": value, "lambda": value}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((3, 3.0), (0.5, 0.5), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.array(3.0), 3.0), (math.inf, math.inf)),
        *((True, None), (np.bool_(True), None), ("1", None), (None, None), ({}, None), (math.nan, None)),
        *((np.array([1.0]), None), (np.array([1.0, 2.0]), None), (10**400, None)),
    ],
)
def test_numbers_of_results(value, number) -> None:
    result = {"a": {"b": value}}
    assert number_at(result, "a/b") == number
    assert number_at(result, "a") is number_at(result, "a/b/c") is number_at(result, "b") is None
    schedules = Schedules({"x": ScheduleOptions(by="a/b", values=[0, 1], above=0)})
    schedules.observe(result)
    assert schedules.values()["x"] == float(number is not None and math.isfinite(number))


def test_checks_see_every_point_and_the_whole_numbers_between() -> None:
    entries = {
        "a": ScheduleOptions(points=[[0, 3], [20, 5], [40, 3.0]]),
        "b": ScheduleOptions(points=[[10, 0.5], [30, 1.5]]),
        "c": ScheduleOptions(by=SUCCESS, values=[1.0, 2.0], above=0.5),
    }
    found = occurring(entries, ["a"])
    assert [values["a"] for values in found[:10:2]] == [3, 4, 5, 4, 3]
    assert {(values["b"], values["c"]) for values in found} >= {(0.5, 1.0), (1.5, 2.0)}
    assert len(occurring({"a": ScheduleOptions(points=[[0, 1], [9, 10**6]])}, ["a"], most=50)) == 51


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        ("env_runners/sucess_rate", "no result has 'env_runners/sucess_rate'; did you mean 'env_runners/success_rate'"),
        ("learners/player/nonsense", "no result has 'learners/player/nonsense'"),
        ("env_runners/stop_reason/limit", None),
        ("evaluation/exploitability", None),
        ("learners/player/vf_loss", None),
    ],
)
def test_a_schedule_by_what_no_result_has_is_refused_at_the_first_one(by: str, problem: str | None) -> None:
    config = config_of({"gamma": ramp(1, by=by)}, evaluation_interval=5)
    check_schedules(config)
    result = {"env_runners": {"success_rate": math.nan}, "learners": {"player": {"vf_loss": math.nan}}}
    if problem is None:
        check_followed(config.run.schedules, result)
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        check_followed(config.run.schedules, result)
    assert caught.value.path == "config.gamma.by"


def test_what_begins_anew_on_resume_cannot_be_followed() -> None:
    with pytest.raises(ConfigError, match="when a run is resumed") as caught:
        check_schedules(config_of({"gamma": ramp(1, by="time_since_restore")}))
    assert caught.value.path == "config.gamma.by"


def ramp(*values: float, **options):
    return {"points": [[10 * number, value] for number, value in enumerate(values)], **options}


def test_the_scale_of_rewards_stays_where_baselines_are_kept_in_it() -> None:
    """Whosever estimator it is; but not that of a policy with a scale of its own."""
    schedule, rae = {"text_rollouts.reward_scale": ramp(0.1, 1)}, {"training": {"advantage_estimator": "rae"}}
    of_one = {"algorithm_config_overrides_per_module": {"b": rae}, "policies": ["a", "b"]}
    for options in (rae, of_one):
        with pytest.raises(ConfigError, match="running baselines are in scaled rewards") as caught:
            check_schedules(config_of(schedule, **options))
        assert caught.value.path == "config.text_rollouts.reward_scale"
    own = {**rae, "text_rollouts": {"reward_scale": 0.5}}
    check_schedules(config_of(schedule, **{**of_one, "algorithm_config_overrides_per_module": {"b": own}}))
    check_schedules(config_of(schedule, training={"advantage_estimator": f"{__name__}:own_estimator"}))
    check_schedules(config_of({"training.advantage_estimator.baseline_decay": ramp(0.9, 0.99)}, **rae))


def own_estimator(inputs):
    """It says nothing of what it reads."""
    return inputs.rewards


def test_a_schedule_may_act_on_policies_that_have_what_it_takes_of_their_own() -> None:
    options = {"language_model": {"max_tokens_per_turn": 12}}
    schedule = {"language_model.max_tokens_per_turn": ramp(8, 16)}
    check_schedules(config_of(schedule, policies={"a": options, "b": {}}))


class KeepOptions(Group):
    """A section of one's own."""

    keep: Scheduled[float] = option(0.5, "A share.", gt=0, le=1)


class KeepConfig(LMGamePPOConfig):
    entry = AlgorithmEntry(
        "Keep",
        algorithm=f"{__name__}:Loop",
        config=f"{__name__}:KeepConfig",
        sections={**PPO.sections, "keeping": Section(KeepOptions), "or_not": Section(KeepOptions, optional=True)},
    )


def test_a_section_of_ones_own_follows_schedules() -> None:
    config = KeepConfig().update_from_dict(in_place(SOKOBAN, {"keeping.keep": ramp(0.5, 1.0)}))
    check_schedules(config)
    followed = schedules_of(config)
    assert config.run.at(followed.values()).keeping.keep == 0.5
    followed.observe({"rl_iteration": 5})
    assert config.run.at(followed.values()).keeping.keep == pytest.approx(0.75)
    assert config.run.keeping == config.run.keeping == KeepOptions(keep=1.0)


def test_values_stand_where_they_act() -> None:
    schedules = {
        "games.0.env_config.num_boxes": {"points": [[0, 1], [2, 2]], "type": "step"},
        "games.0.env_config.max_turns": ramp(5, 15),
        "games.1.env_config.max_turns": ramp(5, 15),
        "games.1.weight": {"by": SUCCESS, "values": [0, 2], "above": 0.5},
        "text_rollouts.reward_scale": ramp(1, 0.5),
        "inference.temperature": ramp(1, 0.6),
        "language_model.max_tokens_per_turn": ramp(16, 36),
        "language_model.min_tokens_per_turn": ramp(8, 4),
        "data_selection.overlong.tokens": ramp(20, 30),
        "data_selection.overlong.buffer": ramp(2),
        "data_selection.oversample": ramp(1.5, 2),
        "data_selection.reward_variance_filter": ramp(1, 0.5),
        "lambda": ramp(0.9, 1),
    }
    rollouts = {**TWO_GAMES.get("text_rollouts", {}), "episodes_per_iteration": 16, "group_size": 2}
    config = LMGamePPOConfig().update_from_dict(in_place({**TWO_GAMES, "text_rollouts": rollouts}, schedules))
    check_schedules(config)
    assert config.run.selects
    followed = schedules_of(config)
    start = config.run.at(followed.values())
    assert [game.env_config for game in start.games] == [{"num_boxes": 1, "max_turns": 5}, {"max_turns": 5}]
    assert [game.weight for game in start.games] == [1, 0]
    followed.observe({"rl_iteration": 5, "env_runners": {"success_rate": 0.8}})
    now = config.run.at(followed.values())
    assert [game.env_config for game in now.games] == [{"num_boxes": 2, "max_turns": 10}, {"max_turns": 10}]
    assert [game.weight for game in now.games] == [1, 2]
    assert (now.text_rollouts.reward_scale, now.inference.temperature) == (0.75, pytest.approx(0.8))
    assert (start.data_selection.reward_variance_filter, now.data_selection.reward_variance_filter) == (1.0, 0.75)
    assert (now.language_model.max_tokens_per_turn, now.language_model.min_tokens_per_turn) == (26, 6)
    assert (now.data_selection.overlong, now.data_selection.oversample) == (OverlongOptions(tokens=25, buffer=2), 1.75)
    assert now.lambda_ == pytest.approx(0.95)
    assert config.training_games()[0].env_config == {"num_boxes": 2, "max_turns": 15}, "what evaluations play"
    again = LMGamePPOConfig().update_from_dict(json.loads(json.dumps(config.run.as_yaml())))
    assert again.run.schedules == config.run.schedules
    assert again.run.schedules.keys() == schedules.keys()


FILE = """\
curriculum:
  run: LMGamePPO
  env: lmgame/Sokoban-v0
  stop: {rl_iteration: 3, schedules/env_config.num_boxes: 2}
  config:
    env_config:
      num_boxes: {by: env_runners/success_rate, values: [1, 2], above: 0.7}
    training:
      policy_loss: {clip_high: {points: [[0, 0.2], [10, 0.3]]}}
"""


@pytest.mark.parametrize(
    ("wrong", "line", "key"),
    [
        (("{clip_high:", "{clip_hihg:"), 9, "training.policy_loss.clip_hihg"),
        (("values: [1, 2]", "values: [1, 9]"), 7, "env_config.num_boxes.values[1]"),
        (("above: 0.7", "abov: 0.7"), 7, "env_config.num_boxes.abov"),
        (("lmgame/Sokoban-v0", "lmgame/TicTacToe-v0"), 7, "env_config.num_boxes"),
    ],
)
def test_an_error_names_key_and_line(tmp_path, wrong, line, key) -> None:
    path = tmp_path / "curriculum.yaml"
    path.write_text(FILE)
    check_experiments(read_experiments(str(path), []))
    path.write_text(FILE.replace(*wrong))
    specs = read_experiments(str(path), [])
    with pytest.raises(ConfigError) as caught:
        check_quickly(specs)
        check_experiments(specs)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert caught.value.path == f"config.{key}"


def test_a_schedule_that_is_added_or_follows_another_counter_goes_on_from_there() -> None:
    steps = ("env_runners", "num_env_steps_sampled_lifetime")
    before = Loop(config_of({"lr": {"points": [[0, 1e-3], [50, 1e-5]]}}))
    for iteration in range(1, 51):
        before._schedules.observe({"rl_iteration": iteration, "num_env_steps_sampled_lifetime": iteration * 100})
    before._rl_iteration, before.metrics.logged[steps] = 50, 5000
    state = json.loads(json.dumps(before.lmgame_state()))
    changed = {
        "lr": {"by": "env_steps", "points": [[0, 1e-3], [5000, 1e-5]]},
        "training.policy_loss.clip_high": {"by": "num_env_steps_sampled_lifetime", "points": [[0, 0.2], [10_000, 0.4]]},
        "text_rollouts.reward_scale": {"points": [[0, 1], [100, 3]]},
    }
    after = Loop(config_of(changed))
    after.metrics.logged[steps] = 5000
    after.set_lmgame_state(state)
    wanted = {"lr": 1e-5, "training.policy_loss.clip_high": 0.3, "text_rollouts.reward_scale": 2}
    assert after._schedules.values() == pytest.approx(wanted)


class Notes:
    """Metrics that are logged."""

    def __init__(self) -> None:
        self.logged = {}

    def log_value(self, key, value: float, **kwargs) -> None:
        self.logged[key] = value

    def peek(self, key, default=None):
        return self.logged.get(key, default)

    def aggregate(self, results, key: str) -> None:
        assert results == []


class Loop(LMGamePPO):
    """The loop alone: nothing is started; what would be played is noted."""

    def __init__(self, config: LMGamePPOConfig) -> None:
        self.config, self.metrics, self.engine_groups, self.learner_group = config, Notes(), {}, None
        self._warm_start = self._league = None
        self._gaps_checked: set[str] = set()
        self._rl_iteration = self._policy_version = 0
        self._needs_groups = self._selects = False
        self._schedules, self._followed = schedules_of(config), False
        self._item_order, self._list_sizes = ItemOrder(0, "train"), {}
        self._best, self._at_start = None, False
        self.asked = []

    def play(self, plans, settings, **kwargs) -> PlayResult:  # type: ignore[override]
        turns, tokens = (
            settings.games[0].env_config.get("max_turns"),
            settings.language_model.get("max_tokens_per_turn"),
        )
        self.asked.append((len(plans), turns, settings.inference.temperature, tokens))
        return PlayResult()

    def push_weights(self, *args) -> float:
        return 0.0

    @property
    def iteration(self) -> int:
        return self._rl_iteration


def test_an_iteration_goes_by_the_values_of_its_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = {
        "env_config.max_turns": {"points": [[0, 4], [1, 7]], "type": "step"},
        "text_rollouts.episodes_per_iteration": {"points": [[0, 4], [1, 6]], "type": "step"},
        "inference.temperature": ramp(1, 0.5),
        "language_model.max_tokens_per_turn": {"by": SUCCESS, "values": [16, 24], "above": 0.5},
        "training.policy_loss.clip_high": {"by": SUCCESS, "values": [0.2, 0.4], "above": 0.5},
    }
    config = config_of(schedules)
    loop, learnt = Loop(config), []
    monkeypatch.setattr(ppo, "update_learners", lambda *_, scheduled: learnt.append(scheduled) or [])
    loop.training_step()
    loop._schedules.observe(result_of(0.9, 1))
    resumed = Loop(config)
    resumed.set_lmgame_state(json.loads(json.dumps(loop.lmgame_state())))
    for each in (loop, resumed):
        each.training_step()
    assert loop.asked == [(4, 4, 1.0, 16), (6, 7, 0.95, 24)] and resumed.asked == loop.asked[1:]
    assert [values["training.policy_loss.clip_high"] for values in learnt] == [0.2, 0.4, 0.4]
    assert learnt[1] == learnt[2] and learnt[1]["inference.temperature"] == 0.95
    assert loop.metrics.logged["schedules", "env_config.max_turns"] == 7


def test_supervised_learning_follows_no_schedules() -> None:
    with pytest.raises(ConfigError, match="LMGameSFT follows no schedules"):
        LMGameSFTConfig().environment("lmgame/FrozenLake-v0").inference(temperature={"points": [[0, 1]]}).validate()


@pytest.mark.parametrize("stage_class", [SupervisedStage, ActionValueStage])
def test_the_rate_of_imitation_falls_from_one_iteration_to_the_next(stage_class):
    """Four iterations of five steps; the last one goes on from a checkpoint."""
    falling = {"linear": [0.1, 0.075, 0.05, 0.025], "cosine": [0.1, 0.0853553, 0.05, 0.0146447]}
    for kind, expected in {"constant": [0.1] * 4, **falling}.items():
        section = {"lr": 0.1, "max_steps": 20, "steps_per_iteration": 5, "lr_scheduler_type": kind}
        config = LMGameILQLConfig().update_from_dict({"env": "lmgame/Maze-v0", "supervised": section})
        stage, rates = stage_class(types.SimpleNamespace(config=config), config.run.supervised_stage), []
        for stage.steps in (0, 5, 10):
            rates.append(stage.objective(5).lr)
        stage.set_state(stage.state() | {"steps": 15})
        assert [*rates, stage.objective(5).lr] == pytest.approx(expected, rel=1e-5)
