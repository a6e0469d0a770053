"""Search spaces and schedulers."""

from __future__ import annotations

import math
import random
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers.pbt import _explore
from ray.tune.search import SEARCH_ALG_IMPORT

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.run.callbacks import watched
from rllib_lmgame.experiments.search import spaces
from rllib_lmgame.experiments.search.schedulers import check_scheduler, make_scheduler, make_searcher
from rllib_lmgame.experiments.spec import CheckpointOptions, Source, make_spec


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"grid_search": []}, "list of values"),
        ({"grid_search": [{"uniform": [0, 1]}]}, "inside another"),
        ({"uniform": [2, 1]}, "less than high"),
        ({"uniform": ["a", 1]}, "must be a number"),
        ({"loguniform": [0, 1]}, "greater than 0"),
        ({"randint": [1.5, 3]}, "whole number"),
    ],
)
def test_wrong_spaces_are_named(space, words):
    (node,) = spaces.find_search_spaces({"section": {"key": space}})
    with pytest.raises(ConfigError, match=words) as caught:
        spaces.check_search_space(node)
    assert caught.value.path.startswith("config.section.key.")


def test_points_cover_the_grid_and_the_extremes():
    config = {
        "a": {"grid_search": [1, 2]},
        "b": {"c": {"grid_search": ["x", "y", "z"]}},
        "lr": {"loguniform": [1e-6, 1e-2]},
        "k": {"choice": [5, 6, 7]},
    }
    points = list(spaces.sample_points(config))
    assert spaces.grid_size(config) == 6
    assert {(p["a"], p["b"]["c"]) for p in points} == {(a, c) for a in (1, 2) for c in "xyz"}
    assert {1e-6, 1e-2} <= {p["lr"] for p in points}
    assert all(1e-6 <= p["lr"] <= 1e-2 for p in points)
    assert {p["k"] for p in points} == {5, 6, 7}


@pytest.mark.parametrize(
    ("space", "ends"),
    [
        ({"randint": [-3, 5]}, [-3, 4]),
        ({"qrandint": [5, 20, 5]}, [5, 20]),
        ({"quniform": [0, 1, 0.25]}, [0.0, 1.0]),
        ({"randn": [1, 2]}, [-1.0, 3.0]),
    ],
)
def test_distributions_are_checked_at_both_ends(space, ends):
    assert [point["k"] for point in spaces.sample_points({"k": space})] == ends


# -- schedulers -------------------------------------------------------------------------------------------------


def test_a_result_without_the_metric_is_passed_over():
    """ASHA would rank a trial by NaN at the end of a rung and never look at it there again."""
    trial, controller = SimpleNamespace(trial_id="a", status="RUNNING"), None
    asha = {"type": "asha", "metric": "m", "mode": "max", "max_t": 9, "grace_period": 1}
    scheduler = make_scheduler(asha, wrap=watched)
    scheduler.on_trial_add(controller, trial)
    recorded = lambda: [score for rung in scheduler._brackets[0]._rungs for score in rung[1].values()]  # noqa: E731
    assert scheduler.on_trial_result(controller, trial, {"training_iteration": 1, "m": math.nan}) == "CONTINUE"
    assert recorded() == []
    assert scheduler.on_trial_result(controller, trial, {"training_iteration": 2, "m": 0.5}) == "CONTINUE"
    assert recorded() == [0.5]


@pytest.mark.parametrize(
    ("setting", "key", "words"),
    [
        ("ashaa", "scheduler.type", "did you mean 'asha'"),
        ({"metric": "m"}, "scheduler.type", "missing"),
        ({"type": "asha", "metric": "m", "mode": ["max"]}, "scheduler.mode", "max or min"),
        ({"type": "asha", "metric": "m", "mode": "max", "grace_perid": 1}, "scheduler.grace_perid", "grace_period"),
        ({"type": "pbt", "metric": "m", "mode": "max"}, "scheduler", "hyperparam_mutations"),
        (
            {"type": "pbt", "metric": "m", "mode": "max", "hyperparam_mutations": {"lr": {"uniform": [2]}}},
            "scheduler.hyperparam_mutations.lr.uniform",
            r"\[low, high\]",
        ),
        ({"type": "fifo", "metric": "m"}, "scheduler.metric", "no such argument"),
        *(
            (
                {"type": "pbt", "metric": "m", "mode": "max", "hyperparam_mutations": mutations},
                f"scheduler.hyperparam_mutations{key}",
                words,
            )
            for mutations, key, words in (
                ({"uniform": [1, 2]}, "", "write it below a key"),
                ({"lr": {"grid_search": [1, 2]}}, ".lr", "list of values"),
                (
                    {"training": {"policy_loss": {"clip_low": {"uniform": [0, 1]}, "clip_high": 3}}},
                    ".training.policy_loss.clip_high",
                    "list of values",
                ),
            )
        ),
    ],
)
def test_wrong_schedulers_are_named(setting, key, words):
    with pytest.raises(ConfigError, match=words) as caught:
        check_scheduler(setting)
    assert caught.value.path == key


def test_population_based_training_takes_search_spaces():
    setting = {
        "type": "pbt",
        "metric": "m",
        "mode": "max",
        "hyperparam_mutations": {"lr": {"loguniform": [1e-5, 1e-3]}, "k": [1, 2]},
    }
    check_scheduler(setting)
    with pytest.raises(ConfigError, match="one another's checkpoints"):
        check_scheduler(setting, CheckpointOptions(num_to_keep=2))


@given(values=st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1), seed=st.integers(0, 99))
def test_what_is_accepted_can_be_perturbed(values, seed):
    """Tune's own step, on a configuration that the checks let through: texts, nested sections, distributions."""
    kinds = ([1, 2], ["x", "y"], {"choice": ["x", "y"]}, {"uniform": [0.0, 1.0]})
    starts = (1, "x", "x", 0.5)
    mutations = {"section": {key: kinds[kind] for key, kind in values.items()}, "top": ["x", "y"]}
    config = {"section": {key: starts[kind] for key, kind in values.items()}, "top": "x"}
    assert list(spaces.mutated_points(config, mutations))
    random.seed(seed)
    changed, _ = _explore(config, spaces.tune_mutations(mutations), 0.25, (1.2, 0.8), None)
    for key, kind in values.items():
        assert isinstance(changed["section"][key], type(starts[kind]))


def test_mutations_need_a_value_to_start_from():
    with pytest.raises(ConfigError, match=r"set config.training.policy_loss.clip_low too") as caught:
        spaces.mutated_points(
            {"training": {"policy_loss": {"clip_high": 0.3}}}, {"training": {"policy_loss": {"clip_low": [0.1, 0.2]}}}
        )
    assert caught.value.path == "scheduler.hyperparam_mutations.training.policy_loss.clip_low"
    assert [
        point["training"]["policy_loss"]["clip_low"]
        for point in spaces.mutated_points({}, {"training": {"policy_loss": {"clip_low": [0.1, 0.2]}}})
    ][:2] == [0.1, 0.2]


def test_a_scheduler_whose_package_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ConfigError, match="install scikit-learn"):
        check_scheduler({"type": "pb2", "metric": "m", "mode": "max", "hyperparam_bounds": {"lr": [0, 1]}})


class Drawing:
    """A searcher of Ray's, as far as it is asked here."""

    def __init__(self, space=None, metric=None, mode=None, n_initial=1, seed=None):
        if n_initial > 9:
            raise AssertionError("Install it: pip install drawing")
        self.drawn = (metric, mode, n_initial, seed)

    def set_search_properties(self, metric, mode, config, **spec):
        return True


LR = {"lr": {"loguniform": [1e-5, 1e-3]}}
ASHA = {"type": "asha", "metric": "env_runners/episode_return_mean", "mode": "max"}


def searched(search, config=LR, **more):
    return make_spec("a", {"run": "PPO", "config": config, "search": search, **more}, Source("a.yaml"))


@pytest.fixture
def drawing(monkeypatch):
    monkeypatch.setitem(SEARCH_ALG_IMPORT, "drawing", lambda: Drawing)


def test_a_searcher_of_rays_draws_with_the_schedulers_metric(drawing):
    search = {"type": "drawing", "seed": 3, "arguments": {"n_initial": 2}}
    assert make_searcher(searched(search, scheduler=ASHA)).drawn == (ASHA["metric"], "max", 2, 3)
    own = make_searcher(searched({**search, "metric": "episodes", "mode": "min"}, scheduler=ASHA))
    assert own.drawn[:2] == ("episodes", "min")


@pytest.mark.parametrize(
    ("search", "config", "scheduler", "key", "words"),
    [
        ({"type": "drawig"}, LR, ASHA, "search.type", "did you mean 'drawing'"),
        ({"type": "drawing"}, LR, None, "search.metric", "missing"),
        ({"type": "drawing", "arguments": {"n_inital": 2}}, LR, ASHA, "search.arguments.n_inital", "'n_initial'"),
        ({"type": "drawing", "arguments": {"n_initial": 10}}, LR, ASHA, "search", "pip install drawing"),
        ({"type": "drawing"}, {}, ASHA, "search.type", "there is no search space"),
        ({"type": "drawing"}, LR, {**ASHA, "type": "pbt"}, "search.type", "pbt changes settings itself"),
    ],
)
def test_what_a_searcher_cannot_do_is_refused(drawing, search, config, scheduler, key, words):
    with pytest.raises(ConfigError) as caught:
        make_searcher(searched(search, config, scheduler=scheduler))
    assert caught.value.path == key and words in caught.value.message
