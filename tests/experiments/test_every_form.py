"""Every key of the configuration reference, in every form its type allows, is accepted and survives the ways a
configuration is carried: through Tune (as a dictionary, pickled), into a checkpoint (as JSON) and into RLlib's
evaluation."""

from __future__ import annotations

import itertools
import json
import types
import typing

import pytest
import yaml
from ray import cloudpickle

from rllib_lmgame.base.group import declared, leaves, tag_of, walk
from rllib_lmgame.experiments.checks.check import CheckedExperiment, check_experiment, check_quickly
from rllib_lmgame.experiments.checks.resources import request_of
from rllib_lmgame.experiments.files.reading import load_text
from rllib_lmgame.experiments.search.spaces import to_tune
from rllib_lmgame.experiments.spec import CheckpointOptions, SearchOptions, make_specs
from rllib_lmgame.settings.algorithms import OWN, PPO, SFT
from rllib_lmgame.settings.sections.preferences import OF_PAIRS
from rllib_lmgame.settings.sections.rllib import FIELDS
from rllib_lmgame.settings.sections.supervised import OF_DATA

GROUPS = PPO.groups | SFT.groups

ADAPTERS = {
    "r": 4,
    "alpha": 8,
    "dropout": 0.1,
    "target_modules": ["q_proj"],
    "modules_to_save": ["norm"],
    "use_rslora": True,
    "init": None,
}
FORMS = {
    "language_model.tiny": [
        {},
        {"hidden_size": 64, "num_heads": 2},
        {"num_kv_heads": 1, "initializer_range": None, "vocab_size": 300},
    ],
    "language_model.system_prompt": [None, "", "You play a game."],
    "language_model.chat_template": [None, "{% for message in messages %}{{ message['content'] }}{% endfor %}"],
    "language_model.chat_template_kwargs": [{}, {"enable_thinking": False}],
    "language_model.demonstrations": [0, 1, [{"observation": "1 + 1", "action": "2", "think": None}]],
    "language_model.turn_suffix": ["", "Turns left: {turns_left}"],
    "language_model.reply_prefill": ["", "<answer>"],
    "inference.engine": [
        "vllm",
        "transformers",
        "rllib_lmgame.inference.engines.transformers_engine:TransformersEngine",
    ],
    "inference.engine_kwargs": [{}, {"seed": 1}],
    "token_ppo.advantage_estimator": [
        "gae",
        "rllib_lmgame.learners.advantages:token_gae",
        {"type": "rae", "baseline_decay": 0.5},
        {"type": "gae", "length_adaptive": 0.05},
        {"type": "bilevel_gae", "turn_gamma": 0.9, "turn_lambda": None},
    ],
    "token_ppo.objective": ["ppo", "rllib_lmgame.learners.objectives:PPOObjective"],
    "token_ppo.policy_loss": [
        "clip",
        {"type": "gspo", "clip_low": 0.1, "clip_high": 0.3, "dual_clip": 3},
        "rllib_lmgame.learners.losses.policy:CISPO",
    ],
    "token_ppo.critic": [
        {},
        {"target": "gae", "lr": 1e-4, "clip": 0.2, "grad_clip": 0.5, "normalization": "popart", "backbone_lr": None},
        {"backbone_lr": 1e-5},
        {"warmup": {"iterations": 2}},
        {"warmup": {"type": "gradient", "iterations": 1, "lr": 0.25}},
    ],
    "token_ppo.aggregation": ["token_mean", "sequence_mean", "turn_mean", {"type": "constant_length", "length": 500}],
    "token_ppo.importance": [
        {},
        None,
        {"cap": None, "band": {"low": 0.5, "high": 5.0}},
        {"cap": 2, "level": "turn", "band": {"low": 0.5, "high": 5, "level": "trajectory"}},
    ],
    "token_ppo.entropy": [{"target": 0.5}, {"target": 0.5, "rate": 0.01}, None],
    "token_ppo.kl": [
        None,
        {},
        "loss",
        {"schedule": [[0, 0.1], [10, 0.01]], "reference": "ema"},
        {"estimator": "k2", "gradient": "k3", "reference": {"type": "ema", "decay": 0.9}},
        {"coeff_range": 10, "reference": {"type": "refresh", "every": 10}},
        "reward",
    ],
    "token_ppo.adam_betas": [[0.9, 0.95], [0, 0.5]],
    "data_selection.zero_variance_groups": ["keep", {"type": "drop", "max_refill": 2}],
    "data_selection.overlong": [None, {"tokens": 64}, {"tokens": 130, "buffer": 8, "penalty": 0.5}],
    "data_selection.normalize_rewards": ["none", "batch", {"type": "game", "deviation": False}, "group"],
    "league.matchmaking": [{"type": "pfsp_hard", "power": 3}, "latest", "rllib_lmgame.league.matchmaking:Uniform"],
    "league.forgotten": [{}, {"share": 0.25, "below": 0.6}, None],
    "league.exploiters": [{}],
    "warm_start.expert": ["solver", "random", "rllib_lmgame.policies.scripted:RandomPlayer"],
    "supervised.expert": ["solver", "random", "rllib_lmgame.policies.scripted:RandomPlayer"],
    "language_model.lora": [None, ADAPTERS],
    "teacher.model": ["someone/teacher"] * 3,  # In each round that sets an option of the section.
    **{
        f"{stage}.stop_at": [None, {}, {"success": 0.25, "every": 10}, {"invalid_rate": 0.1, "episodes": 8}]
        for stage in ("warm_start", "supervised")
    },
}
"""Values of options whose type does not say which values there are."""

WITHOUT_CRITIC = {"language_model.value_model": ["shared"], "token_ppo.critic": [{"lr": 1e-4}]}
OF_GROUPS = {
    "token_ppo.advantage_estimator": ["grpo", {"type": "gigpo", "average": "steps"}, "vine", "reinforce_pp"],
    "text_rollouts.group_size": [4, 8],
    **WITHOUT_CRITIC,
}
"""Of LMGameGRPO."""

OF_PREFERENCES = {
    "dpo.loss": ["ipo", {"type": "simpo", "margin": 1.0}, {"type": "sigmoid", "label_smoothing": 0.1}],
    "text_rollouts.group_size": [4, 8],
    **WITHOUT_CRITIC,
}
OF_ACTION_VALUES = {
    "action_values.beta": [0.0],  # Else one engine alone plays.
    "inference.weight_transport": ["object_store"],
    "language_model.dtype": ["auto", "float32"],
    "token_ppo.critic": WITHOUT_CRITIC["token_ppo.critic"],
}
WITHOUT_EFFECT = {
    "LMGameDPO": [f"dpo.{key}" for key in ("data", *OF_PAIRS)],
    **{f"LMGame{name}": ["language_model.lora", "inference.adapters", "deepspeed"] for name in ("MC", "CQL", "ILQL")},
}
"""Options that are left out: they ask for files, or are refused."""

FLAT = {
    "lr": [
        1e-6,
        [[0, 1e-4], [1000, 1e-5]],
        {"loguniform": [1e-6, 1e-4]},
        {"grid_search": [1e-5, 1e-4]},
        {"choice": [1e-5, [[0, 1e-4], [9, 1e-5]]]},
    ],
    "gamma": [1, 0.99, {"uniform": [0.9, 1.0]}],
    "lambda": [0, 0.95, {"sample_from": "tests_every_form:drawn"}],
    "entropy_coeff": [0, 0.01, [[0, 0.01], [1000, 0]]],
    "grad_clip": [1, 0.5, None],
    "seed": [0, 3, {"randint": [0, 9]}],
    "num_epochs": [1, 2],
    "num_env_runners": [0, 2],
    "num_learners": [0, 2],
    "num_gpus_per_learner": [0],
    "num_cpus_per_learner": ["auto", 1],
    "num_gpus_per_env_runner": [0],
    "num_cpus_for_main_process": [1, 0.5],
    "grad_clip_by": ["global_norm"],
    "evaluation_num_env_runners": [0, 1],
    "evaluation_sample_timeout_s": [60, None],
    "num_envs_per_env_runner": [1, 64],
    "num_cpus_per_env_runner": [1, 0.5],
    "kl_coeff": [0, 0.001],
    "kl_target": [0.01],
    "vf_loss_coeff": [0.2, 1],
    "evaluation_interval": [None, 10],
    "evaluation_duration": [128, 4],
    "evaluation_config": [
        None,
        {"explore": False},
        {"temperature": 0},
        {
            "explore": False,
            "games": [
                "lmgame/TicTacToe-v0",
                {"env": "lmgame/Sokoban-v0", "env_config": {"split": "test"}, "weight": 2},
            ],
        },
    ],
    "sample_timeout_s": [60, None],
    "restart_failed_env_runners": [True, False],
    "delay_between_env_runner_restarts_s": [1, 60.0],
    "deepspeed": [None, {}, {"zero_optimization": {"stage": 2}}],
}

PLAYERS = [
    {"policies": ["player"], "policy_mapping_fn": "shared"},
    {"policies": ["a", "b"], "policy_mapping_fn": "random_seat"},
    {
        "policies": {"player": {}, "opponent": {"player": "minimax"}},
        "policy_mapping_fn": {"X": "player", "O": "opponent"},
    },
    {
        "policies": {"player": None, "opponent": {"player": "random"}},
        "policy_mapping_fn": {"X": "player", "*": "opponent"},
    },
    {"policies": {"a": {"trained": True}, "b": {"trained": False}}, "policy_mapping_fn": {"*": "a"}},
    {"policies": {"a": {"language_model": {"max_tokens_per_turn": 32}}, "b": {"player": "solver", "trained": False}}},
    {
        "policies": {"a": {}, "b": {"player": "rllib_lmgame.policies.scripted:RandomPlayer"}},
        "policy_mapping_fn": "tests_every_form:first_policy",
    },
    {
        "policies": {"a": {}, "b": {"player": "random"}, "c": {"trained": False}},
        "policy_mapping_fn": {"type": "versus", "opponents": {"b": 2, "c": 0.5}},
    },
    {"policies": ["a"], "policy_mapping_fn": "league"},
    {"policies": ["a", "b"], "league": {"exploiters": {"b": {"of": "a", "reset_every": None, "past_share": 0}}}},
    {
        "policies": {"a": {}, "b": {}},
        "policy_mapping_fn": {"grid_search": ["shared", {"X": "a", "O": "b"}, {"X": "b", "O": "a"}]},
    },
]
GAMES = [
    {"env": "lmgame/TicTacToe-v0"},
    {"env": "rllib_lmgame.envs.games.duels.tic_tac_toe:TicTacToe", "env_config": {"show_rules": False}},
    {"games": ["lmgame/Sokoban-v0", "lmgame/FrozenLake-v0"]},
    {
        "games": [
            {"env": "lmgame/Sokoban-v0", "env_config": {"split": "train"}, "weight": 0.5},
            {"env": "lmgame/Wordle-v0"},
        ]
    },
    {"games": {"choice": [["lmgame/Sokoban-v0"], ["lmgame/Wordle-v0"]]}},
]
EXPERIMENT = [
    {"stop": {"ppo_iteration": 1}, "num_samples": 2, "max_failures": -1, "time_budget_s": 60, "log_to_file": True},
    {
        "stop": {"env_runners": {"success_rate": 0.9}},
        "storage_path": "results",
        "checkpoint_config": {"num_to_keep": None},
        "search": {"seed": None},
    },
    {"stop": {"training_iteration": 1}, "scheduler": "fifo", "callbacks": ["ray.tune.logger:CSVLoggerCallback"]},
    {
        "stop": {"training_iteration": 1},
        "scheduler": {"type": "asha", "metric": "env_runners/episode_return_mean", "mode": "max"},
        "callbacks": [{"type": "ray.tune.logger:JsonLoggerCallback"}],
        "report": "learning",
        "search": {"seed": 3, "max_concurrent_trials": 1},
    },
    {
        "stop": {"training_iteration": 1},
        "report": {"type": "rllib_lmgame.evaluation.learning_report:learning_report", "episodes": 4},
    },
]

COMPANIONS = {
    ("language_model.dtype", "bfloat16"): {"deepspeed": {"bf16": {"enabled": True}}},
    ("language_model.dtype", "float16"): {"deepspeed": {"fp16": {"enabled": True}}},
    ("language_model.attn_implementation", "flash_attention_2"): {"num_gpus_per_learner": 1},
    ("inference.weight_transport", "nccl"): {"inference": {"num_gpus_per_engine": 1}, "num_gpus_per_learner": 1},
    ("inference.weight_transport", "ipc"): {"inference": {"num_gpus_per_engine": 0.4}, "num_gpus_per_learner": 0.6},
    ("inference.sleep_during_update", "True"): {"inference": {"num_gpus_per_engine": 0.4}, "num_gpus_per_learner": 0.6},
    ("inference.tensor_parallel_size", "2"): {"inference": {"num_gpus_per_engine": 2}},
    ("inference.adapters", "True"): {"language_model": {"lora": {}}},
    ("text_rollouts.constrained_decoding", "True"): {"token_ppo": {"importance": None}},
    ("language_model.lora", str(ADAPTERS)): {},
    ("token_ppo.kl", "reward"): {},
    ("token_ppo.advantage_estimator", "vine"): {},
    ("token_ppo.normalize_advantages", "group"): {"text_rollouts": {"group_size": 2}},
    ("warm_start.stop_at", "{'success': 0.25, 'every': 10}"): {},
    ("data_selection.zero_variance_groups", "{'type': 'drop', 'max_refill': 2}"): {"text_rollouts": {"group_size": 2}},
    ("data_selection.normalize_rewards", "group"): {"text_rollouts": {"group_size": 2}},
    ("league.averaged_snapshots", "True"): {"env": "lmgame/TicTacToe-v0", "token_ppo": {"ema_decay": 0.9}},
    ("league.snapshot_every", "None"): {"env": "lmgame/TicTacToe-v0", "league": {"snapshot_win_rate": 0.6}},
}
"""What a value needs beside it; such values are checked in a configuration of their own."""


TALK = "talk.jsonl"
STAGES = ("warm_start", "supervised")


@pytest.fixture(autouse=True)
def functions_by_import_path(tmp_path, monkeypatch) -> None:
    """A module and a file of data of the user's own."""
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / TALK).write_text(json.dumps({"messages": said, "reward": 1.5, "success": True, "item_id": "a"}))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests_every_form.py").write_text(
        "def drawn(spec=None):\n    return 0.5\n\n\ndef first_policy(agent_id, episode=None, **kwargs):\n    "
        "return 'a'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def arms(hint):
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def derived(field, hint):
    """A value for every arm of an option's type: all choices, both truth values, its limits, null."""
    default, limits = field.default, field.says
    yield from limits.get("choices") or ([default] if default is not None else [])
    for arm in arms(hint):
        if arm is type(None):
            yield None
        elif arm is bool:
            yield from (True, False)
        elif arm in (int, float) and default is None:
            low = max((limit for limit in (limits.get("ge"), limits.get("gt")) if limit is not None), default=1)
            yield arm(low + (1 if arm is int else 0.25))


def forms_of(section: str, group: type):
    for field in declared(group).values():
        key = f"{section}.{field.name}"
        yield key, FORMS.get(key) or list(derived(field, field.hint))


# Values that fit together with the other options' in their round.
FORMS["inference.tensor_parallel_size"] = [1, 2]
FORMS["language_model.max_tokens_per_episode"] = [None, 500]
FORMS["token_ppo.max_row_tokens"] = [None, 512]


def merged(base, more):
    shared = [key for key in base.keys() & more.keys() if isinstance(base[key], dict) and isinstance(more[key], dict)]
    return {**base, **more} | {key: {**base[key], **more[key]} for key in shared}


def nested(key: str, value):
    section, _, name = key.rpartition(".")
    return {section: {name: value}} if section else {key: value}


def rounds(forms):
    """Few configurations that hold every form once: the n-th form of every key together."""
    alone = [(key, value) for key, values in forms.items() for value in values if (key, str(value)) in COMPANIONS]
    together = {
        key: [value for value in values if (key, str(value)) not in COMPANIONS] for key, values in forms.items()
    }
    for values in itertools.zip_longest(*together.values(), fillvalue=...):
        config = {}
        for key, value in zip(together, values, strict=True):
            config = config if value is ... else merged(config, nested(key, value))
        yield config
    for key, value in alone:
        yield merged(COMPANIONS[key, str(value)], nested(key, value))


def configurations(algorithm: str):
    forms = (
        dict(itertools.chain.from_iterable(forms_of(name, group) for name, group in OWN[algorithm].groups.items()))
        | {"LMGameGRPO": OF_GROUPS, "LMGameSFT": WITHOUT_CRITIC}.get(algorithm, {})
        | {"LMGameDPO": OF_PREFERENCES, "LMGameAgentEvol": WITHOUT_CRITIC}.get(algorithm, {})
        | (OF_ACTION_VALUES if "action_values" in OWN[algorithm].groups else {})
        | FLAT
    )
    for key in WITHOUT_EFFECT.get(algorithm, ()):
        forms.pop(key)
    if OWN[algorithm].config_class().follows_schedules:
        stages = {"by": "env_runners/episode_return_mean", "values": [0.2, 0.3], "above": 1, "below": 0}
        forms["gamma"] = [*forms["gamma"], {"points": {"choice": [[[0, 1]], [[0, 0.9]]]}}]
        forms["env_config"] = [{}, {"max_turns": {"by": "env_steps", "points": [[0, 5], [10, 9]], "type": "step"}}]
        forms["token_ppo.policy_loss"] = [*forms["token_ppo.policy_loss"], {"clip_high": stages}]
    taught = []
    for stage in STAGES:
        options = {key: forms.pop(key) for key in [f"{stage}.{name}" for name in OF_DATA] if key in forms}
        options |= {f"{stage}.format": ["auto", "messages"]} if options else {}
        taught += [merged({stage: {"data": TALK}}, config) for config in rounds(options)]
    game = {False: "lmgame/FrozenLake-v0", True: "lmgame/TicTacToe-v0"}
    return [{"env": game["league" in config], **config} for config in [*rounds(forms), *taught]]


def checked(settings) -> CheckedExperiment:
    """An experiment read from YAML text and checked as ``rllib train file`` does it."""
    experiments, source = load_text(yaml.safe_dump({"a": settings}), "x.yaml")
    (spec,) = make_specs(experiments, source)
    check_quickly([spec])
    return check_experiment(spec)


def said_by(config):
    """What of a configuration is this package's own."""
    names = [section.attribute for section in config.entry.sections.values()]
    names += [
        "deepspeed_config",
        "games",
        "evaluation_options",
        "player_options",
        "seat_mapping_spec",
        "schedule_options",
    ]
    return {
        name: getattr(config, name)
        for name in [*names, "env", "env_config", "lr", "gamma", "lambda_", "seed", "num_env_runners"]
    }


def check_carried(experiment: CheckedExperiment) -> None:
    """The configurations of an experiment after every way they are carried."""
    algorithm, fresh = experiment.algorithm, experiment.algorithm.default_config
    assert request_of(experiment).bundles
    cloudpickle.loads(cloudpickle.dumps(to_tune(experiment.spec.config)))
    for config in experiment.configs:
        dictionary = cloudpickle.loads(cloudpickle.dumps(config.to_dict()))
        again = fresh().update_from_dict(dictionary)
        again.validate()
        assert said_by(again) == said_by(config)
        assert algorithm.cls.default_resource_request(dictionary).bundles  # type: ignore[attr-defined]
        again.get_evaluation_config_object()
        written = fresh().update_from_dict(json.loads(json.dumps(config.settings.as_yaml())))
        for key in (
            "language_model_options",
            "inference_options",
            "text_rollout_options",
            "token_ppo_options",
            "player_options",
            "games",
            "schedule_options",
        ):
            assert getattr(written, key) == getattr(config, key)
        assert seats_of(written) == seats_of(again) == seats_of(config)


def seats_of(config) -> list[str]:
    """Who plays the two seats of a game, in one episode."""
    mapping, episode = (
        config.agent_to_module_mapping(),
        {"episode": None, "agent_ids": ("player_0", "player_1"), "seed": 3},
    )
    return [mapping("player_0", role="X", **episode), mapping("player_1", role="O", **episode)]


@pytest.mark.parametrize(
    "algorithm", [name if name == "LMGamePPO" else pytest.param(name, marks=pytest.mark.slow) for name in OWN]
)
def test_every_option_in_every_form_is_carried(algorithm: str) -> None:
    for config in configurations(algorithm):
        check_carried(checked({"run": algorithm, "stop": {"training_iteration": 1}, "config": config}))


@pytest.mark.parametrize("part", PLAYERS, ids=lambda part: str(part.get("policy_mapping_fn")))
def test_every_form_of_policies_and_their_seats_is_carried(part) -> None:
    check_carried(
        checked({"run": "LMGamePPO", "stop": {"ppo_iteration": 1}, "config": {"env": "lmgame/TicTacToe-v0", **part}})
    )


@pytest.mark.parametrize("part", GAMES, ids=str)
def test_every_form_of_games_is_carried(part) -> None:
    check_carried(checked({"run": "LMGamePPO", "stop": {"ppo_iteration": 1}, "config": part}))


OF_SEARCHERS = {f"search.{name}" for name in ("type", "metric", "mode", "arguments")}
"""They ask for a package that is not here: ``tests/experiments/test_search.py``."""


def test_every_form_of_the_keys_of_an_experiment_is_accepted() -> None:
    for settings in EXPERIMENT:
        check_carried(checked({"run": "LMGamePPO", "env": "lmgame/FrozenLake-v0", **settings}))
    for key, group in (("checkpoint_config", CheckpointOptions), ("search", SearchOptions)):
        for config in rounds({name: forms for name, forms in forms_of(key, group) if name not in OF_SEARCHERS}):
            checked({"run": "LMGamePPO", "env": "lmgame/TicTacToe-v0", "stop": {"ppo_iteration": 1}, **config})


def written_below(value):
    """The keys of a mapping, also of those in it."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from (key, *(f"{key}.{name}" for name in written_below(inner)))


def test_every_option_in_a_group_is_here() -> None:
    for section, group in GROUPS.items():
        written = {
            f"{key.removeprefix(section)}.{name}".removeprefix(".")
            for key, forms in FORMS.items()
            if key.startswith(f"{section}.")
            for form in forms
            for name in written_below(form)
        }
        named_alone = {f"{each.key}.{tag_of(each.group)}" for each in walk(group) if each.group}
        within = {key for key, leaf in leaves(group).items() if "." in key and not leaf.says.get("arguments")}
        assert within - named_alone <= written, section


def test_every_declared_key_of_rllib_is_here() -> None:
    assert FIELDS.keys() - FLAT.keys() == {"env", "env_config"}, "these stand in GAMES"
