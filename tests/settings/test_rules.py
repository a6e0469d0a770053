"""Every row of :mod:`rllib_lmgame.settings.rules` is broken by its example, on the whole way, and by no default."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import yaml

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.experiments.checks.check import check_experiment, check_quickly
from rllib_lmgame.experiments.spec import Source, make_spec
from rllib_lmgame.settings import rules
from rllib_lmgame.settings.rules import Rule, Told

REFUSED = [
    rule
    for table in vars(rules).values()
    if isinstance(table, tuple) and table and isinstance(table[0], Rule)
    for rule in table
]


@pytest.fixture(autouse=True)
def own_losses(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimator of somebody's own, which says nothing of itself."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_losses", raising=False)
    (tmp_path / "own_losses.py").write_text("estimator = lambda inputs: inputs.rewards\n")


def notices_of(config: dict[str, Any]) -> list[str]:
    """What the whole way from a file says of settings that it takes."""
    run = config.pop("run", "LMGamePPO")
    if "games" not in config:
        config.setdefault("env", "lmgame/FrozenLake-v0")
    spec = make_spec("a", {"run": run, "config": config, "stop": {"training_iteration": 1}}, Source("x.yaml"))
    check_quickly([spec])
    check_experiment(spec)
    return spec.notices


@pytest.mark.parametrize("rule", REFUSED, ids=lambda rule: f"{rule.key}: {rule.example}")
def test_the_example_of_a_rule_is_refused_at_its_key_by_this_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Rule] = []
    message = Rule.message
    monkeypatch.setattr(Rule, "message", lambda row, s, f: asked.append(row) or message(row, s, f))
    with pytest.raises(ConfigError) as caught:
        notices_of(yaml.safe_load(rule.example))
    assert asked and asked[-1] is rule
    assert caught.value.path == f"config.{rule.key}"
    assert caught.value.message and not set("{}") & set(caught.value.message.replace("{stage: 0}", ""))


@pytest.mark.parametrize("row", rules.TOLD, ids=lambda row: row.example)
def test_the_example_of_an_idle_option_is_taken_and_told(row: Told) -> None:
    (notice,) = notices_of(yaml.safe_load(row.example))
    assert notice.removeprefix("config.").startswith(row.keys) and f": {row.effect}" in notice


def test_steps_of_warm_up_that_nobody_set_are_told_with_their_key() -> None:
    (notice,) = notices_of({"warm_start": {"max_steps": 20}})
    assert notice.startswith("config.warm_start.max_steps: 50 steps of warm-up are more than max_steps: 20, so")
    assert notice.endswith("; set warm_start.lr_warmup_steps to fewer")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"run": "LMGameGRPO"},
        {"run": "LMGameSFT"},
        {"env": "lmgame/TicTacToe-v0", "league": {}},
        {"env": "lmgame/TicTacToe-v0", "league": {"opponent_engines": 2}, "policies": ["a", "b"]},
    ],
    ids=str,
)
def test_no_rule_refuses_what_is_so_by_default(config: dict[str, Any]) -> None:
    assert not notices_of(config)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"env": "lmgame/TicTacToe-v0", "league": {"snapshot_min_games": 64}}, "league.snapshot_min_games"),
        ({"token_ppo": {"policy_loss": "dppo", "importance": {"cap": 2}}}, "token_ppo.importance.cap"),
        ({"token_ppo": {"importance": {"cap": None, "level": "token"}}}, "token_ppo.importance.level"),
    ],
    ids=str,
)
def test_the_value_of_the_default_is_refused_as_any_other_where_it_has_no_effect(
    config: dict[str, Any], key: str
) -> None:
    with pytest.raises(ConfigError, match="has no effect") as caught:
        notices_of(config)
    assert caught.value.path == f"config.{key}"


@pytest.mark.parametrize(
    ("schedule", "at", "words"), [([], "", "needs at least one point"), ([[0, 1e300]], "[0]", "at most 1000000000")]
)
def test_a_schedule_of_the_coefficient_has_points_in_range(schedule: list[Any], at: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        notices_of({"token_ppo": {"kl": {"schedule": schedule}}})
    assert caught.value.path == f"config.token_ppo.kl.schedule{at}"


def test_a_window_is_shown_by_any_policy_and_a_policys_own_by_itself() -> None:
    models: dict[str, dict[str, Any]] = {"a": {}, "b": {"history": "window"}}
    two = {
        "env": "lmgame/TicTacToe-v0",
        "policies": {name: {"language_model": model} for name, model in models.items()},
    }
    assert not notices_of({**two, "language_model": {"history_window": 2}})
    models["b"]["history_window"] = 2
    assert not notices_of({**two})
    models["a"]["history_window"] = 2
    with pytest.raises(ConfigError, match="has no effect without") as caught:
        notices_of({**two})
    assert caught.value.path == "config.policies.a.language_model.history_window"


@pytest.mark.parametrize(
    ("coefficient", "told"),
    [
        ({"kl_coeff": 0}, True),
        ({"token_ppo": {"kl": {"in": "reward", "schedule": [[0, 0], [9, 0.0]]}}}, True),
        ({"kl_coeff": {"grid_search": [0, 0.1]}}, False),
        ({"kl_coeff": {"points": [[0, 0], [9, 0.1]]}}, False),
        ({"token_ppo": {"kl": {"schedule": [[0, 0], [9, 0.1]]}}}, False),
        ({}, False),
    ],
    ids=str,
)
def test_a_penalty_of_0_is_told_to_cost_a_reference(coefficient: dict[str, Any], told: bool) -> None:
    """Not refused: `mean_kl_loss` is measured with it, and checkpoints keep the weights of the beginning."""
    notices = notices_of({"token_ppo": {"kl": {}}} | coefficient)
    assert [notice.partition(":")[0] for notice in notices] == ["config.token_ppo.kl"] * told


def test_the_value_of_the_default_is_told_as_any_other_and_what_is_off_is_not() -> None:
    idle = {"kl_target": 0.01, "token_ppo": {"advantage_estimator": "reinforce", "critic": {"target": "monte_carlo"}}}
    (first, second) = notices_of(idle)
    assert first.startswith("config.token_ppo.critic.target: without effect")
    assert second.startswith("config.kl_target: without effect")
    assert not notices_of({"gamma": 1, "data_selection": {"overlong": None}})
    (notice,) = notices_of({"run": "LMGameSFT", "token_ppo": {"policy_loss": "clip"}})
    assert notice.startswith("config.token_ppo.policy_loss.type: without effect")
