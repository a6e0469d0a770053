"""What the algorithm's configuration refuses on the driver, and what it writes into checkpoints."""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import Any, ClassVar

import pytest
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.policy.policy import PolicySpec
from ray.tune.registry import get_trainable_cls

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import declared, walk, with_changes
from rllib_lmgame.base.schedule import ScheduleOptions
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import INSTEAD, TAKEN, EvaluationOptions
from rllib_lmgame.config.run import read
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.experiments.checks.algorithms import resolve_algorithm
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import Transformers
from rllib_lmgame.learners.advantages import Estimator
from rllib_lmgame.learners.options import ImportanceSamplingOptions, KLOptions
from tests.envs.broken_games import Counting

TWO_TRAINED = {"policies": ["a", "b"], "policy_mapping_fn": "random_seat"}
BASE = {"env": "lmgame/TicTacToe-v0", "language_model": {"model": "tiny"}}


def first_seat(agent_id: str, episode=None, **kwargs) -> str:
    """A mapping function."""
    return "a"


class ComparesGroups(Estimator):
    """An advantage estimator."""

    needs_groups: ClassVar[bool] = True

    def __call__(self, inputs):
        return inputs.rewards


def with_six_arrays(rewards, values, bootstrap, offsets, gamma: float, lam: float):
    return rewards


def of_seats(agent_id: str) -> str:
    """A mapping that takes less than it is given."""
    return "a"


class Named:
    """A player that takes what nobody gives it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Thinks:
    """A player whose thoughts take more than they are given."""

    def act(self, session, agent_id: str, observation, rng) -> str:
        return ""

    def think(self, session, agent_id: str, observation) -> str:
        return ""


class OldEngine(TransformersEngine):
    """An engine that is made of other things."""

    def __init__(self, model_dir: str) -> None:
        """Of its directory alone."""


class Old(Transformers):
    implementation = f"{__name__}:OldEngine"


OF_GROUPS = {"training": {"advantage_estimator": f"{__name__}:ComparesGroups"}}


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        (
            {"training": {"advantage_estimator": f"{__name__}:with_six_arrays"}},
            "config.training.advantage_estimator",
            "one argument",
        ),
        (
            OF_GROUPS,
            "config.text_rollouts.group_size",
            f"training.advantage_estimator `{__name__}:ComparesGroups` compares",
        ),
    ],
)
def test_what_own_parts_ask_is_asked(settings, path, words) -> None:
    with pytest.raises(ConfigError) as caught:
        LMGamePPOConfig().update_from_dict({**BASE, **settings}).validate()
    assert caught.value.path == path
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("settings", "path", "words"),
    [
        ({"policy_mapping_fn": "of_seats"}, "policy_mapping_fn", r"takes \(agent_id: 'str'\).*; it is called as \("),
        ({"policy_mapping_fn": "OF_GROUPS"}, "policy_mapping_fn", "is a dict, not a function"),
        ({"policies": {"a": {}, "x": {"player": "Named"}}}, "policies.x.player", "made without arguments: .*'name'"),
        ({"policies": {"a": {}, "x": {"player": "Thinks"}}}, "policies.x.player", "Thinks.think` takes"),
        ({"policies": {"a": {}, "x": {"player": "BASE"}}}, "policies.x.player", "is a dict, not a class"),
        ({"inference": {"engine": "Old"}}, "inference.engine", r"OldEngine` takes \(model_dir.*context_length"),
        ({"inference": {"engine": "BASE"}}, "inference.engine", "does not derive from Engine"),
    ],
)
def test_what_takes_something_else_than_it_is_given_is_refused(settings, path, words) -> None:
    by_path = json.loads(re.sub(r'": "(\w+)"', rf'": "{__name__}:\1"', json.dumps(settings)))
    with pytest.raises(ConfigError, match=words) as caught:
        LMGamePPOConfig().update_from_dict({**BASE, **by_path}).validate()
    assert caught.value.path == f"config.{path}"


KUHN_SEATS = {"env": "lmgame/KuhnPoker-v0", "policies": {"player": {}, "other": {"player": "random"}}}
WOLVES = {"env": "lmgame/Werewolf-v0", "policies": ["wolves", "village"]}


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({**KUHN_SEATS, "policy_mapping_fn": {"player_0": "player"}}, "", "no policy for agent 'player_1'"),
        ({**KUHN_SEATS, "policy_mapping_fn": {"*": "other"}}, "", "gives 'player', which learns, no seat"),
        ({**KUHN_SEATS, "policy_mapping_fn": {0: "player", "*": "other"}}, ".0", "seat or role 0; there are player_0"),
        ({**WOLVES, "policy_mapping_fn": {"werwolf": "wolves", "*": "village"}}, ".werwolf", "did you mean 'werewolf'"),
        ({**WOLVES, "policies": ["a", "b"], "policy_mapping_fn": "per_role"}, "", "finds no policy for every role"),
    ],
)
def test_seats_policies_and_games_must_agree(settings, key, message) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        LMGamePPOConfig().update_from_dict({**BASE, **settings}).validate()
    assert error.value.path == f"config.policy_mapping_fn{key}"


TWO_LEARN = {"policies": {"a": {}, "b": {}, "c": {"trained": False}, "foe": {"player": "random"}}}


@pytest.mark.parametrize("named", [["a"], {"a", "b", "c"}, ["b", "a", "foe"], lambda policy, batch: policy == "a"])
def test_who_learns_is_said_by_the_policies(named) -> None:
    """RLlib's key may say the same, by either way to set it."""
    settings = {**BASE, **TWO_LEARN, "policy_mapping_fn": "self_play"}
    by_key = LMGamePPOConfig().update_from_dict({**settings, "policies_to_train": named})
    by_method = LMGamePPOConfig().update_from_dict(settings).multi_agent(policies_to_train=named)
    for config in (by_key, by_method):
        with pytest.raises(ConfigError, match=r"policies\.NAME\.trained") as error:
            config.validate()
        assert error.value.path == "config.policies_to_train"
    for same in (["b", "a"], {"a", "b"}, None):
        LMGamePPOConfig().update_from_dict({**settings, "policies_to_train": same}).validate()


@pytest.mark.parametrize(
    "settings",
    [
        {**KUHN_SEATS, "policy_mapping_fn": {"player_0": "player", "*": "other"}},
        {**WOLVES, "policy_mapping_fn": {"werewolf": "wolves", "seer": "village", "*": "village"}},
        {**WOLVES, "policy_mapping_fn": {"werewolf_0": "wolves", "*": "village"}},
        {"env": "lmgame/FrozenLake-v0", "policy_mapping_fn": {"player": "player"}},
        {
            "env": None,
            "games": [{"env": "lmgame/KuhnPoker-v0"}, {"env": "lmgame/TicTacToe-v0"}],
            "policies": ["cards", "board"],
            "policy_mapping_fn": {"player_0": "cards", "player_1": "cards", "*": "board"},
        },
    ],
)
def test_seats_of_any_of_the_games_may_be_named(settings) -> None:
    LMGamePPOConfig().update_from_dict({**BASE, **settings}).validate()


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ([None], "expected names as keys, got nothing|null|None"),
        (["a", "a"], "stands there twice"),
        ({"1": {}, 1: {}}, "stands there twice"),
        (["a\nb"], "no name"),
        (["x" * 300], "no name: 1 to 200 printable bytes"),
        ([""], "no name"),
    ],
)
def test_names_of_policies(policies, message) -> None:
    with pytest.raises(ConfigError, match=message):
        LMGamePPOConfig().players(policies)


@pytest.mark.parametrize("player", ["language_model", "random"])
def test_what_a_policy_says_of_its_model_does_not_change_during_a_run(player: str) -> None:
    own = {"max_tokens_per_turn": {"points": [[0, 4], [5, 8]]}}
    with pytest.raises(ConfigError, match=r"policies\.a\.language_model\.max_tokens_per_turn: .* follow a schedule"):
        LMGamePPOConfig().players({"a": {"player": player, "language_model": own}})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("run", "LMGamePPO", "unknown key"),
        ("learner_class", 3, "unknown key"),
        ("callbacks_on_train_result", 3, "expected package.module:function"),
        ("callbacks_on_train_result", [3], "expected package.module:function"),
        ("games_", ["lmgame/Sokoban-v0"], "unknown key"),
    ],
)
def test_what_is_no_option_of_a_configuration_is_refused(key, value, message) -> None:
    config = LMGamePPOConfig()
    with pytest.raises(ConfigError, match=f"^config.{key}: {message}"):
        config.update_from_dict({key: value})
    assert config.run == LMGamePPOConfig().run


def test_a_league_by_its_section_or_by_its_mapping() -> None:
    asked = [
        {"league": {}},
        {"policy_mapping_fn": "league"},
        {"league": {"matchmaking": {"type": "rllib_lmgame.league.matchmaking:PFSPHard", "power": 3}}},
        {
            "league": {"opponent_engines": 2},
            "policies": {"a": {}, "b": {"language_model": {"tiny": {"seed": 3}}}},
            "policy_mapping_fn": {"type": "league"},
        },
    ]
    for settings in asked:
        config = LMGamePPOConfig().update_from_dict({**BASE, **settings})
        config.validate()
        assert config.run.league is not None
        again = LMGamePPOConfig().update_from_dict(config.run.as_yaml())
        assert again.run.league == config.run.league
    assert LMGamePPOConfig().update_from_dict(BASE).run.league is None


def test_an_estimator_of_one_policy_alone_is_asked_for_groups_too() -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, **TWO_TRAINED})
    estimator = {"advantage_estimator": ComparesGroups()}
    other = with_changes(config.run.training, estimator)
    config.multi_agent(algorithm_config_overrides_per_module={"b": {"training": other}})
    with pytest.raises(ConfigError, match="compares the episodes of a group"):
        config.validate()
    assert config.text_rollouts(group_size=8, episodes_per_iteration=16).run.compares


def test_options_of_one_policy_alone_are_written_and_read_again() -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, **TWO_TRAINED})
    other = with_changes(config.run.training, {"policy_loss.clip_high": 0.3, "ema_decay": 0.9})
    config.multi_agent(algorithm_config_overrides_per_module={"b": {"training": other}})
    config.validate()
    again = LMGamePPOConfig().update_from_dict(json.loads(json.dumps(config.run.as_yaml())))
    for policy in ("a", "b"):
        assert again.get_config_for_module(policy).run.training == (config.get_config_for_module(policy).run.training)
    assert again.run.averages


OVERRIDES = "algorithm_config_overrides_per_module"


@pytest.mark.parametrize(
    ("own", "path", "words"),
    [
        ({"bb": {"lr": 1e-3}}, ".bb", "no policy that learns; did you mean 'b'?"),
        ({"a": {"lrr": 1e-3}}, ".a.lrr", "did you mean 'config.lr'?"),
        ({"a": {"training": {"max_row_tokens": 8}}}, ".a.training.max_row_tokens", "one reply"),
        ({"a": {"training": {"num_threads": 3}}}, ".a.training.num_threads", "set config.training."),
        ({"a": {"language_model": {}}}, ".a.language_model", "set config.policies.a.language_model"),
        ({"a": {"num_learners": 2}}, ".a.num_learners", "cannot be a policy's own"),
        ({"a": {"training": {"adam_betas": [0.9, 1.0]}}}, ".a.training.adam_betas[1]", "less than 1"),
        ({"a": {"clip_param": 0.1}}, ".a.clip_param", "set training.policy_loss.clip_low"),
        ({"a": {"model": {"fcnet_hiddens": [8]}}}, ".a.model", "set language_model"),
    ],
)
def test_overrides_of_a_policy_are_what_it_may_have_of_its_own(own, path, words) -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, **TWO_TRAINED, OVERRIDES: own})
    with pytest.raises(ConfigError) as caught:
        config.validate()
    assert caught.value.path == f"config.{OVERRIDES}{path}"
    assert words in caught.value.message


@pytest.mark.parametrize("own", [{"kl_coeff": 0.5}, {"learner_config_dict": {"mine": {"x": 1}}}])
def test_what_an_update_reads_can_be_a_policys_own(own) -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, **TWO_TRAINED, OVERRIDES: {"b": own}})
    config.validate()
    ((key, value),) = own.items()
    values = [getattr(config.get_config_for_module(policy), key) for policy in ("a", "b")]
    assert values == [getattr(config, key), value] and values[0] != value


@pytest.mark.parametrize("on", [True, False])
def test_rllibs_switch_of_the_penalty_is_the_group(on: bool) -> None:
    before = LMGamePPOConfig().training(**({} if on else {"kl": {"loss_estimator": "k3"}}))
    config = before.copy(copy_frozen=False).training(use_kl_loss=on)
    assert (before.use_kl_loss, config.use_kl_loss) == (not on, on)
    assert config.run.training.kl == (KLOptions() if on else None)
    assert "use_kl_loss" not in config.to_dict()
    kept = LMGamePPOConfig().training(kl={"loss_estimator": "k3"}).training(use_kl_loss=True)
    assert kept.run.training.kl == KLOptions(loss_estimator="k3"), "what is there stays"


def test_a_file_may_set_keys_that_rllib_has() -> None:
    """A new version of RLlib may have others; what is said instead of one that does nothing exists, too."""
    config = LMGamePPOConfig()
    assert not [key for key in TAKEN if not config._is_rllibs(key)]
    read(dict.fromkeys((*TAKEN, "callbacks_on_train_result")), OWN["LMGamePPO"])
    keys = {f"{section}.{each.key}" for section, group in OWN["LMGamePPO"].groups.items() for each in walk(group)}
    keys |= {f"evaluation_config.{key}" for key in declared(EvaluationOptions)} | {"supervised.data"}
    for key, instead in INSTEAD.items():
        assert {*re.findall(r"[a-z][a-z_-]+\.[a-z_.]*[a-z]", instead)} <= keys, (key, instead)
        with pytest.raises(ConfigError) as caught:
            read({key: 1}, OWN["LMGamePPO"])
        assert instead in caught.value.message


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"advantage_estimator": tune.grid_search(["grpo", "rloo"])}, "advantage_estimator"),
        ({"advantage_estimator": tune.choice(["grpo", "rloo"])}, "advantage_estimator"),
        ({"kl": {"reference": {"type": "ema", "decay": tune.uniform(0.9, 1.0)}}}, "kl.reference.decay"),
    ],
)
def test_a_search_space_in_a_section_is_refused_at_once(options, key) -> None:
    with pytest.raises(ConfigError) as caught:
        LMGamePPOConfig().training(**options)
    assert caught.value.path.startswith(f"config.training.{key}")


@pytest.mark.parametrize(
    ("method", "options", "key"),
    [
        ("training", {"lr": float("nan")}, "lr"),
        ("training", {"lr": ScheduleOptions(points=[[5, 1], [1, 1e-3]])}, "lr.points[1]"),
        ("env_runners", {"num_env_runners": -1}, "num_env_runners"),
        ("deepspeed", {"config": 5}, "deepspeed"),
        ("inference", {"temperature": ScheduleOptions(points=[])}, "inference.temperature.points"),
        ("training", {"aggregation": {"length": 3}}, "training.aggregation.length"),
        ("training", {"advantage_estimator": {"type": "gigpo", 5: 1}}, "training.advantage_estimator.5"),
    ],
    ids=str,
)
def test_what_methods_set_is_checked_as_what_a_file_says(method, options, key):
    with pytest.raises(ConfigError) as caught:
        getattr(LMGamePPOConfig().update_from_dict(BASE), method)(**options).validate()
    assert caught.value.path == f"config.{key}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            {"advantage_estimator": {"type": "rae", "baseline_decay": {"points": [[0, 0.1]]}}},
            {"advantage_estimator": "gae"},
        ),
        ({"kl": {"coef": {"points": [[0, 5]]}}}, {"kl": None}),
        (
            {"importance_sampling": {"cap": {"points": [[0, 1]]}}},
            {"importance_sampling": ImportanceSamplingOptions(cap=5)},
        ),
    ],
)
def test_a_schedule_goes_with_its_option(before, after):
    config = LMGamePPOConfig().training(**before)
    assert config.run.schedules and not config.training(**after).run.schedules


def test_evaluation_is_set_by_its_method_as_by_its_key() -> None:
    own = {"games": ["lmgame/Maze-v0"], "temperature": 0.3, "measures": [{"type": "against", "player": "random"}]}
    config = LMGamePPOConfig().update_from_dict(BASE).evaluation(evaluation_config=own)
    again = LMGamePPOConfig().update_from_dict({"evaluation_config": own})
    assert config.run.evaluation_config == again.run.evaluation_config
    assert config.evaluation_config is None, "RLlib is told nothing of it"
    config.evaluation(evaluation_config={"num_envs_per_env_runner": 3}, evaluation_num_env_runners=1).validate()
    assert config.run.evaluation_config.temperature == 0.3, "what is not named stays"
    assert config.copy(copy_frozen=False).get_evaluation_config_object().num_envs_per_env_runner == 3
    assert config.evaluation(evaluation_config=None).run.evaluation_config == LMGamePPOConfig().run.evaluation_config
    for wrong in ({"temperature": -1}, {"nonsense": 1}, {"explore": "x"}, {"lr": 1}, {"games": 5}, {"measures": False}):
        with pytest.raises(ConfigError) as caught:
            config.evaluation(evaluation_config=wrong)
        assert caught.value.path == f"config.evaluation_config.{next(iter(wrong))}"
    with pytest.raises(ConfigError, match=r"temperature: .* a search space; set it in the dictionary"):
        config.evaluation(evaluation_config={"temperature": tune.uniform(0, 1)})


@pytest.mark.parametrize(
    ("evaluation", "temperature"),
    [
        ({"temperature": 0.0}, 0.0),
        ({"temperature": 0.5, "games": ["lmgame/Maze-v0"]}, 0.5),
        ({"explore": False}, 0.0),
        ({"explore": True, "temperature": 2}, 2.0),
        ({}, None),
    ],
)
def test_what_evaluation_plays_is_written_and_read_again(evaluation, temperature) -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, "evaluation_config": evaluation})
    read = LMGamePPOConfig().update_from_dict(config.run.as_yaml())
    assert config.run.evaluation_config.sampling == read.run.evaluation_config.sampling == temperature
    assert read.run.evaluation_config.games == config.run.evaluation_config.games


def test_a_mapping_function_without_a_name_is_not_lost_in_silence() -> None:
    policies = {"policies": ["a", "b"], "policy_mapping_fn": lambda *args, **kwargs: "b"}
    written = LMGamePPOConfig().update_from_dict({**BASE, **policies}).run.as_yaml()
    with pytest.raises(ConfigError, match="policy_mapping_fn"):
        LMGamePPOConfig().update_from_dict(written).agent_to_module_mapping()


def test_paths_that_are_there_become_absolute_ones(tmp_path, monkeypatch) -> None:
    """A trial has a working directory of its own, in which a relative path leads nowhere."""
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "model", "org/model"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("chat.jinja", "games.jsonl"):
        (tmp_path / name).touch()
    own = {"model": "org/model", "tokenizer": "org/other"}
    config = LMGamePPOConfig().update_from_dict(
        {
            "language_model": {"model": "./model", "tokenizer": "model", "chat_template": "chat.jinja"},
            "warm_start": {"data": "games.jsonl"},
            "policies": {"player": {}, "opponent": {"language_model": own, "trained": False}},
        }
    )
    options, opponent = config.language_model_of("player"), config.language_model_of("opponent")
    assert [options.model, options.tokenizer] == [str(tmp_path / "model")] * 2
    assert options.chat_template == str(tmp_path / "chat.jinja")
    assert (opponent.model, opponent.tokenizer) == (str(tmp_path / "org/model"), "org/other")
    assert config.run.supervised_stage is not None and config.run.supervised_stage.data == str(tmp_path / "games.jsonl")
    assert LMGamePPOConfig().language_model(model="tiny").run.language_model.model == "tiny"
    long = "{{ messages }}" * 1000
    assert LMGamePPOConfig().language_model(chat_template=long).run.language_model.chat_template == long


class Loop(MultiAgentEnv):
    """A game as RLlib has them."""


def takes_one_mapping(config):
    """Makes a game as RLlib does, from one mapping of options."""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.environment(lambda config: Counting()), "config.env: env runners cannot import"),
        (
            lambda config: config.environment(type("Mine", (), {"__module__": "__main__"})),
            "config.env: .*cannot import",
        ),
        (lambda config: config.environment("registered-by-rllib"), "config.env: .*register_env.*package.module:Name"),
        (lambda config: make_session(f"{__name__}:Loop"), "RLlib's MultiAgentEnv; .*pettingzoo"),
        (lambda config: config.environment(takes_one_mapping), "as keyword arguments: .*'config'"),
        (
            lambda config: config.multi_agent(policies={"a": PolicySpec(config={"lr": 1.0})}),
            r"config.policies.a: .*PolicySpec says nothing",
        ),
        (lambda config: config.multi_agent(policies_to_train=["b"]), "config.policies_to_train: must be .*player"),
        (lambda config: config.multi_agent(policy_mapping_fn=lambda agent: "a"), "config.policy_mapping_fn: .*takes"),
        (lambda config: config.training(model={"fcnet_hiddens": [8]}), "config.model: has no effect here"),
        (lambda config: config.environment(action_mask_key="mask"), "config.action_mask_key: .*constrained_decoding"),
    ],
)
def test_forms_of_rllib_that_cannot_work_say_what_to_write(change, words) -> None:
    tune.register_env("registered-by-rllib", lambda config: Counting())
    with pytest.raises((ConfigError, GameError), match=words):
        change(LMGamePPOConfig().update_from_dict(BASE)).validate()


def test_forms_of_rllib_that_work() -> None:
    config = LMGamePPOConfig().update_from_dict(BASE).environment(Counting, env_config={})
    assert config.env == "tests.envs.broken_games:Counting"
    config.copy(copy_frozen=False).framework(tf_session_args={"set": "by RLlib, for its local runner"}).validate()
    for policies in ({"b", "a"}, {"a": PolicySpec(), "b": (None, None, None, None)}, ["a", "b"], {"a": {}, "b": None}):
        config = LMGamePPOConfig().update_from_dict(BASE)
        config.multi_agent(policies=policies, policy_mapping_fn=first_seat, policies_to_train=["a"]).validate()
        assert (list(config.run.policies), config.trained_policies()) == (["a", "b"], ["a"])
        assert config.agent_to_module_mapping()("X", None, role="X", agent_ids=("X", "O"), seed=1) == "a"
        again = LMGamePPOConfig().update_from_dict(config.to_dict())
        assert (list(again.run.policies), again.trained_policies()) == (["a", "b"], ["a"])
    written = {"multiagent": {"policies": ["a", "b"], "policy_mapping_fn": "per_role", "policies_to_train": ["b"]}}
    assert LMGamePPOConfig().update_from_dict({**BASE, **written}).trained_policies() == ["b"]
    config.freeze()
    with pytest.raises(AttributeError, match=r"\(lr\)"):
        config.lr = 1e-3
    for entry in OWN.values():
        algorithm = resolve_algorithm(entry.name).cls
        assert get_trainable_cls(entry.name) is algorithm
        own = [each for each in vars(algorithm).values() if inspect.isfunction(each)]
        here = vars(sys.modules[algorithm.__module__])
        assert all(each.__globals__ is here for each in own), "Ray has pickled it by value and replaced its methods"
        tune.Tuner(entry.name)


def test_options_that_share_a_name_with_rllibs_or_are_a_group_are_set_by_methods() -> None:
    config = LMGamePPOConfig().update_from_dict(BASE).training(optimizer="muon").on_collapse(success=0)
    assert config.run.training.optimizer == "muon" and config.run.on_collapse.type == "stop"
    assert config.on_collapse(type="stop").run.on_collapse.success == 0, "what is not named stays"


class Heard(RLlibCallback):
    """A callback that a module has."""


def test_a_configuration_goes_through_json() -> None:
    config = LMGamePPOConfig().update_from_dict({**BASE, "lr": 1e-4, "training": {"kl": {"coef": 0.1}}})
    config.callbacks(Heard, on_train_result=first_seat)
    config.env_runners(num_env_runners=2, merge_env_runner_states="training_only")  # RLlib's own, of old checkpoints
    config.fault_tolerance(max_num_env_runner_restarts=7)
    again = LMGamePPOConfig().update_from_dict(json.loads(json.dumps(config.serialize())))
    assert again.run == config.run and again.to_dict() == config.to_dict()
    assert again.max_num_env_runner_restarts == 7 and again.lr == config.serialize()["lr"] == 1e-4


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("explore", lambda config: config.env_runners(explore=False).validate()),
        ("learner_class", lambda config: config.training(learner_class=object)),
        ("inference", lambda config: setattr(config, "inference", {"temperature": 0.5})),
        ("custom_evaluation_function", lambda config: config.evaluation(custom_evaluation_function=print)),
        ("compress_observations", lambda config: config.env_runners(compress_observations=True)),
    ],
)
def test_settings_of_rllib_that_do_nothing_here_are_refused_with_what_does(key: str, change: Any) -> None:
    with pytest.raises(ConfigError, match="has no effect here") as caught:
        change(LMGamePPOConfig().environment("lmgame/TicTacToe-v0"))
    assert caught.value.path == f"config.{key}"
