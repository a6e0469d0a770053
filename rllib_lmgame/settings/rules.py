"""Rules between options, one row each: the option, when it is refused, and the smallest settings that break it.

``s`` are the :class:`~rllib_lmgame.settings.tree.Settings` of a run or one policy; ``f`` is what plug-ins and games
say of them (:mod:`rllib_lmgame.algorithms.facts`). Importing this loads neither Ray nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.group import declared, leaves, value_at
from rllib_lmgame.base.schedule import check_points
from rllib_lmgame.settings.algorithms import ACTION_VALUES, PREFERENCES, TOKEN_PPO
from rllib_lmgame.settings.plugins import REPLY_FORMATS
from rllib_lmgame.settings.sections.exploiters import share_without_members
from rllib_lmgame.settings.sections.inference import ADAPTER_ARGUMENTS
from rllib_lmgame.settings.sections.league import is_league
from rllib_lmgame.settings.sections.preferences import OF_PAIRS, DPOOptions
from rllib_lmgame.settings.sections.supervised import (
    OF_DATA,
    SupervisedOptions,
    groups_needed,
    share_of_groups,
    spare_groups,
)
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions
from rllib_lmgame.settings.tree import Settings

Test = Callable[[Any, Any], Any]
"""Settings and facts -> whether; a section may be off, so that their types would say less."""


@dataclass(frozen=True)
class Rule:
    """One rule between options.

    Attributes:
        key: The option that is refused.
        broken: Whether it is; a text is the message, and an error names its own key.
        say: The problem and the remedy; ``{s}`` and ``{f}`` stand for the arguments.
        example: The smallest settings that break it, as YAML below ``config``, with the algorithm as ``run``.
        where_set: Only where the option was given (:meth:`~rllib_lmgame.settings.tree.Settings.is_set`).
        beside: Options named instead where they are a policy's own and ``key`` is not.
    """

    key: str
    broken: Test
    say: str
    example: str
    where_set: bool = False
    beside: tuple[str, ...] = ()

    def message(self, s: Settings, f: Any) -> str | None:
        """What is wrong, or ``None``. Raises: ConfigError: for what is wrong at another key."""
        if self.where_set and not s.is_set(self.key):
            return None
        found = self.broken(s, f)
        if isinstance(found, ConfigError):
            raise found
        if not found:
            return None
        return found if isinstance(found, str) else self.say.format(s=s, f=f)


@dataclass(frozen=True)
class Told:
    """Options that are accepted, so that one file can compare settings, but reported as without effect.

    Attributes:
        keys: They are reported where they are given.
        idle: Whether nothing reads them; it must hold for all learning policies and all of a search space.
        say, example: As in :class:`Rule`.
        effect: What is said before that.
    """

    keys: tuple[str, ...]
    idle: Test
    say: str
    example: str
    effect: str = "without effect, "


def no_effect(key: str, unless: Test, say: str, example: str) -> Rule:
    """An option that was given must have something to do."""
    return Rule(key, lambda s, f: not unless(s, f), f"has no effect {say}", example, where_set=True)


def _known(key: str, plug_in: Test, example: str) -> Rule:
    """There is a plug-in of this name, with what it must have: else asking for it raises."""
    return Rule(
        key, lambda s, f: plug_in(s, f) and None, "no part has this name, or it lacks what it is asked for", example
    )


def idle(rules: tuple[Rule, ...], s: Settings, f: Any) -> Iterator[str]:
    """Options that nobody gave and whose defaults would be refused if they were written down."""
    for rule in rules:
        if rule.where_set and not s.given(rule.key) and s.value(rule.key) is not None and rule.broken(s, f):
            yield rule.key


def broken(rules: tuple[Rule, ...], s: Settings, f: Any) -> Iterator[tuple[Rule, str]]:
    """The rules that settings break, in order, and what is said."""
    for rule in rules:
        message = rule.message(s, f)
        if message is not None:
            yield rule, message


def _kl_schedule(s: Any) -> list[list[float]] | None:
    return None if s.ppo.kl is None else s.ppo.kl.schedule


def _staleness_limits(s: Any) -> list[int]:
    limits = [s.policy(name).ppo.staleness_limit for name in s.trained_policies()]
    return [limit for limit in limits if limit is not None]


def _cap(s: Any) -> float | None:
    return None if s.ppo.importance is None else s.ppo.importance.cap


# -- RLlib's own keys -------------------------------------------------------------------------------------------------


RLLIB = (
    *(
        Rule(
            key,
            lambda s, f, key=key, wanted=wanted: getattr(f.rllib, key) != wanted,  # type: ignore[misc]
            f"must be {wanted!r} with this algorithm, got {{f.rllib.{key}!r}}",
            f"{key}: {value}",
        )
        for key, wanted, value in (
            ("batch_mode", "complete_episodes", "truncate_episodes"),
            ("num_aggregator_actors_per_learner", 0, 1),
            ("add_default_connectors_to_learner_pipeline", False, "true"),
        )
    ),
    Rule(
        "evaluation_duration",
        lambda s, f: f.rllib.evaluation_duration_unit != "episodes" or not isinstance(s.rllib.evaluation_duration, int),
        "must be a whole number of episodes",
        "evaluation_duration_unit: timesteps",
    ),
    Rule(
        "evaluation_parallel_to_training",
        lambda s, f: f.rllib.evaluation_parallel_to_training,
        "must be false: evaluation uses the engines that training updates",
        "{evaluation_interval: 1, evaluation_num_env_runners: 1, evaluation_parallel_to_training: true}",
    ),
    Rule(
        "games",
        lambda s, f: f.rllib.games and s.rllib.env is not None,
        "stands beside env: {s.rllib.env}, which would not be played; add it to the list, or leave `games` out",
        "{env: lmgame/FrozenLake-v0, games: [lmgame/Maze-v0]}",
    ),
    Rule(
        "env_config",
        lambda s, f: f.rllib.games and s.rllib.env_config,
        "has no effect beside `games`: every entry of the list has an `env_config` of its own",
        "{games: [lmgame/Maze-v0], env_config: {max_turns: 3}}",
    ),
    *(
        no_effect(
            f"evaluation_config.{key}",
            lambda s, f: s.rllib.evaluation_num_env_runners,
            "without evaluation_num_env_runners",
            f"evaluation_config: {{{key}: {value}}}",
        )
        for key, value in (
            *(("num_envs_per_env_runner", 1), ("num_cpus_per_env_runner", 1), ("num_gpus_per_env_runner", 1)),
            ("custom_resources_per_env_runner", "{special: 1}"),
        )
    ),
)

# -- one language model -----------------------------------------------------------------------------------------------

LENGTHS = (
    Rule(
        "language_model.max_tokens_per_turn",
        lambda s, f: s.lm.max_tokens_per_turn >= s.lm.context_length,
        "max_tokens_per_turn={s.lm.max_tokens_per_turn} leaves no room for a prompt in "
        "context_length={s.lm.context_length}",
        "language_model: {max_tokens_per_turn: 2048}",
        beside=("language_model.context_length",),
    ),
    Rule(
        "language_model.min_tokens_per_turn",
        lambda s, f: s.lm.least_room > s.lm.max_tokens_per_turn,
        "min_tokens_per_turn={s.lm.min_tokens_per_turn} is more than max_tokens_per_turn={s.lm.max_tokens_per_turn}",
        "language_model: {min_tokens_per_turn: 129}",
        beside=("language_model.max_tokens_per_turn",),
    ),
    Rule(
        "language_model.max_tokens_per_episode",
        lambda s, f: (s.lm.max_tokens_per_episode or math.inf) < s.lm.max_tokens_per_turn,
        "max_tokens_per_episode={s.lm.max_tokens_per_episode} is less than "
        "max_tokens_per_turn={s.lm.max_tokens_per_turn}",
        "language_model: {max_tokens_per_episode: 127}",
        beside=("language_model.max_tokens_per_turn",),
    ),
)
REPLIES = (  # ``f`` makes the reply format.
    _known("language_model.reply_format", lambda s, f: f(s.lm), "language_model: {reply_format: boxd}"),
    no_effect(
        "language_model.answer_tag",
        lambda s, f: s.lm.reply_format == "tags" or s.lm.reply_format not in REPLY_FORMATS,
        "with reply_format: {s.lm.reply_format}, which has no tag for the action",
        "language_model: {reply_format: boxed, answer_tag: move}",
    ),
    Rule(
        "language_model.answer_tag",
        lambda s, f: (form := f(s.lm)).think_opening in form.tags,
        "is that of language_model.think_tag, so that every action would be taken for reasoning; name another tag",
        "language_model: {answer_tag: think}",
        beside=("language_model.think_tag",),
    ),
    no_effect(
        "language_model.stop_at_answer",
        lambda s, f: f(s.lm).stops,
        "with reply_format: {s.lm.reply_format}, in which no text says that the reply is over",
        "language_model: {reply_format: boxed, stop_at_answer: true}",
    ),
    Rule(
        "language_model.think",
        lambda s, f: s.lm.think == "required" and not f(s.lm).thought_form,
        "required cannot be told with reply_format: {s.lm.reply_format}, in which reasoning has no marks; use "
        "`optional`, which asks for it",
        "language_model: {reply_format: boxed, think: required}",
        beside=("language_model.reply_format",),
    ),
)
NUMERICS = (
    Rule(
        "language_model.dtype",
        lambda s, f: (
            s.lm.dtype in ("bfloat16", "float16")
            and not f.half_precision
            and (s.lm.lora is None or s.lm.dtype == "float16")
        ),
        "{s.lm.dtype} weights lose small optimizer steps in rounding unless a `bf16` or `fp16` section of `deepspeed` "
        "keeps float32 copies; use `auto`: float32 weights, bfloat16 passes on a GPU",
        "language_model: {dtype: bfloat16}",
    ),
    Rule(
        "language_model.attn_implementation",
        lambda s, f: (
            s.lm.attn_implementation == "flash_attention_2"
            and (not s.rllib.num_gpus_per_learner or s.lm.dtype == "float32")
        ),
        "flash_attention_2 runs on a GPU and in half precision: set num_gpus_per_learner and `dtype: auto`, or "
        "`attn_implementation: auto`",
        "language_model: {attn_implementation: flash_attention_2}",
    ),
    Rule(
        "language_model.value_model",
        lambda s, f: s.lm.lora is not None and s.lm.value_model == "separate",
        "separate would train a second backbone whole, which is what language_model.lora saves; take `shared`",
        "language_model: {lora: {}, value_model: separate}",
    ),
)


def _own_window(s: Settings, f: Any) -> ConfigError | None:
    for name in s.language_model_policies():
        if "history_window" in s.policies[name].language_model and s.model_of(name).history != "window":
            key = f"config.policies.{name}.language_model.history_window"
            return ConfigError(key, "has no effect without history: window")
    return None


_MERGED = (
    "has no effect on a policy that does not learn; set its `model` to a checkpoint's hf/, which has adapters merged"
)


def _frozen_lora(s: Settings, f: Any) -> ConfigError | None:
    for name in s.language_model_policies():
        if s.policies[name].language_model.get("lora") is not None and not s.is_trained(name):
            return ConfigError(f"config.policies.{name}.language_model.lora", _MERGED)
    return None


OWN_MODELS = (
    Rule(
        "policies.player.language_model.lora",
        _frozen_lora,
        _MERGED,
        "{env: lmgame/TicTacToe-v0, policies: {other: {}, player: {trained: false, language_model: {lora: {}}}}}",
    ),
    Rule(
        "policies.player.language_model.history_window",
        _own_window,
        "has no effect without history: window",
        "policies: {player: {language_model: {history_window: 2}}}",
    ),
    no_effect(
        "language_model.history_window",
        lambda s, f: any(
            s.model_of(name, game).history == "window"
            for name in s.language_model_policies()
            for game in (None, *s.games, *(s.evaluation.games or ()))
        ),
        "without history: window",
        "language_model: {history_window: 2}",
    ),
)

# -- the update of one policy -----------------------------------------------------------------------------------------


def _read_without_data(s: Any, group: type[Any], keys: Sequence[str], instead: str) -> ConfigError | None:
    """The first option of what is read of files that is not as it is by default, where no file is."""
    for section, options in s.sections.items():
        for key in keys if isinstance(options, group) and options.data is None else ():
            if value_at(options, key) != declared(group)[key].default:
                return ConfigError(f"config.{section}.{key}", f"has no effect without data: {instead}")
    return None


def _shows_no_reply(s: Any) -> bool:
    """No prompt of a learning policy shows a reply before what the game says."""
    shown = (s.model_of(name, game) for name in s.trained_policies() for game in s.games or (None,))
    return all(each.history == "window" and each.history_window == 1 for each in shown)


def _unseen_of_stage(s: Any) -> ConfigError | None:
    """The stage that is to learn what games say and never shows it; files are shown as they are."""
    for stage, options in s.sections.items():
        played = isinstance(options, SupervisedOptions) and options.data is None
        if played and options.observation_weight and _shows_no_reply(s):
            return ConfigError(f"config.{stage}.observation_weight", _NO_REPLY)
    return None


_NO_REPLY = (
    "is about what a game says behind a reply, and language_model.history: window shows none; set history_window: 2 or "
    "more, or history: keep"
)


def _kto(s: Any) -> bool:
    return PREFERENCES in s.sections and not s.sections[PREFERENCES].loss.pairs


_FILES_ALONE = "run: LMGameSFT, env: null, "
TAUGHT = (
    *(
        no_effect(
            f"supervised.{key}",
            lambda s, f: "agentevol" not in s.sections,
            "with LMGameAgentEvol, whose section agentevol says how long is imitated",
            f"{{run: LMGameAgentEvol, env: lmgame/Sokoban-v0, supervised: {{{key}: {value}}}}}",
        )
        for key, value in (
            *(("max_steps", 9), ("steps_per_iteration", 9), ("stop_at", "{}"), ("epochs", 2)),
            ("validation_share", 0.1),
        )
    ),
    Rule(
        "warm_start.format",
        lambda s, f: _read_without_data(s, SupervisedOptions, OF_DATA, "an expert plays"),
        "has no effect without data: an expert plays",
        "warm_start: {format: messages}",
    ),
    Rule(
        "dpo.epochs",
        lambda s, f: _read_without_data(s, DPOOptions, OF_PAIRS, "groups are played"),
        "has no effect without data: groups are played",
        "{run: LMGameDPO, dpo: {epochs: 1}}",
    ),
    *(
        no_effect(
            f"dpo.{key}",
            lambda s, f: not _kto(s),
            "with loss: kto, which compares no two; leave it out",
            f"{{run: LMGameDPO, dpo: {{loss: kto, {key}: {value}}}}}",
        )
        for key, value in (("sft_weight", 0.1), ("pairs_per_level", "all"))
    ),
    Rule(
        "warm_start",
        lambda s, f: not s.games and s.supervised is not None and s.supervised.data is None,
        "there is no game for the expert to play; set config.env, or warm_start.data",
        "{run: LMGameDPO, env: null, dpo: {data: 'data:agentgym-traj'}, warm_start: {}}",
    ),
    Rule(
        "warm_start.observation_weight",
        lambda s, f: _unseen_of_stage(s),
        _NO_REPLY,
        "{language_model: {history: window}, warm_start: {observation_weight: 0.1}}",
    ),
    Rule(
        "token_ppo.observation_weight",
        lambda s, f: s.entry.learned_by == TOKEN_PPO and s.ppo.observation_weight and _shows_no_reply(s),
        _NO_REPLY,
        "{language_model: {history: window}, token_ppo: {observation_weight: 0.1}}",
    ),
    Rule(
        "supervised.stop_at",
        lambda s, f: not s.plays and s.supervised is not None and s.supervised.stop_at is not None,
        "there is no game to validate on; set config.env, or validation_share, which measures the loss",
        f"{{{_FILES_ALONE}supervised: {{data: 'data:agentgym-traj', stop_at: {{}}}}}}",
    ),
    Rule(
        "supervised.test_episodes",
        lambda s, f: not s.plays and s.supervised is not None and s.supervised.test_episodes,
        "there is no game to play; set config.env",
        f"{{{_FILES_ALONE}supervised: {{data: 'data:agentgym-traj', test_episodes: 9}}}}",
    ),
    Rule(
        "evaluation_interval",
        lambda s, f: not s.plays and s.rllib.evaluation_interval,
        "there is no game to evaluate on; set config.env or config.evaluation_config.games",
        f"{{{_FILES_ALONE}supervised: {{data: 'data:agentgym-traj'}}, evaluation_interval: 1}}",
    ),
)


def _asks_teacher(s: Settings) -> bool:
    """Whether the teacher is behind an endpoint, which knows each token's log-probability at temperature 1 alone."""
    teacher = s.sections.get("teacher")
    return teacher is not None and teacher.is_asked


def _other_temperature(s: Settings, f: Any) -> ConfigError | None:
    for number, game in enumerate(s.games):
        followed = s.follows(f"games.{number}.temperature")
        if _asks_teacher(s) and (followed or game.temperature not in (None, 0, 1)):
            return ConfigError(f"games[{number}].temperature", _AT_ONE)
    return None


_AT_ONE = "must be 1 with a teacher behind an endpoint, which tells log-probabilities at no other; name its directory"
ASKED_TEACHER = (
    Rule(
        "inference.temperature",
        lambda s, f: _asks_teacher(s) and (s.inf.temperature not in (0, 1) or s.follows("inference.temperature")),
        _AT_ONE,
        "{teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, inference: {temperature: 0.7}}",
    ),
    Rule(
        "games[0].temperature",
        _other_temperature,
        _AT_ONE,
        "{teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, games: [{env: lmgame/Maze-v0, temperature: 0.7}]}",
    ),
    Rule(
        "text_rollouts.legal_moves_only",
        lambda s, f: _asks_teacher(s) and s.play.legal_moves_only,
        "does not go with a teacher behind an endpoint, which says nothing of the moves that were not taken; name its "
        "directory, or leave one of them out",
        "{teacher: {model: 'openai:big@http://127.0.0.1:8000/v1'}, text_rollouts: {legal_moves_only: true}}",
    ),
    no_effect(
        "teacher.trust_remote_code",
        lambda s, f: not _asks_teacher(s),
        "with a teacher behind an endpoint; leave it out",
        "teacher: {model: 'openai:big@http://127.0.0.1:8000/v1', trust_remote_code: true}",
    ),
)
UPDATE = (
    Rule(
        "token_ppo.adam_betas",
        lambda s, f: not all(0 <= beta < 1 for beta in s.ppo.adam_betas),
        "must be two numbers of at least 0 and less than 1, got {s.ppo.adam_betas}",
        "token_ppo: {adam_betas: [0.9, 1]}",
    ),
    no_effect(
        "token_ppo.advantage_estimator.baseline_decay",
        lambda s, f: f.reads("baseline_decay"),
        "with {f.estimator_name}, which does not say in its `reads` that it takes `inputs.baseline_decay`; an argument "
        "of its class needs another name",
        "{token_ppo: {advantage_estimator: {type: 'own_losses:estimator', baseline_decay: 0.5}}}",
    ),
    no_effect(
        "token_ppo.critic.backbone_lr",
        lambda s, f: f.separate_critic,
        "without language_model.value_model: separate",
        "token_ppo: {critic: {backbone_lr: 1.0e-5}}",
    ),
    Rule(
        "token_ppo.kl.schedule[1]",
        lambda s, f: _kl_schedule(s) is not None and _points_problem(_kl_schedule(s)),
        "points come in the order of their positions",
        "token_ppo: {kl: {schedule: [[10, 0.1], [0, 0]]}}",
    ),
    Rule(
        "token_ppo.kl.schedule",
        lambda s, f: any(coefficient < 0 for _, coefficient in _kl_schedule(s) or ()),
        "must be a list of [iteration, coefficient of at least 0] with rising iterations",
        "token_ppo: {kl: {schedule: [[0, -1]]}}",
    ),
    no_effect(
        "token_ppo.kl.coeff_range",
        lambda s, f: _kl_schedule(s) is None,
        "beside schedule; leave one of them out",
        "token_ppo: {kl: {schedule: [[0, 0.1]], coeff_range: 10}}",
    ),
    Rule(
        "token_ppo.entropy.target",
        lambda s, f: s.ppo.entropy is not None and s.ppo.entropy.target > f.largest_entropy,
        "{s.ppo.entropy.target:g} is more than the entropy of all tokens of the vocabulary alike, "
        "{f.largest_entropy:.2f}",
        "token_ppo: {entropy: {target: 20}}",
    ),
    Rule(
        "token_ppo.max_row_tokens",
        lambda s, f: (s.ppo.max_row_tokens or math.inf) < s.lm.max_tokens_per_turn + 1,
        "token_ppo.max_row_tokens={s.ppo.max_row_tokens} cannot hold one reply of max_tokens_per_turn="
        "{s.lm.max_tokens_per_turn} tokens and its prompt",
        "token_ppo: {max_row_tokens: 128}",
    ),
    Rule(
        "grad_clip_by",
        lambda s, f: s.rllib.grad_clip is not None and s.rllib.grad_clip_by != "global_norm",
        "language models are clipped by `global_norm`, got {s.rllib.grad_clip_by!r}",
        "grad_clip_by: value",
    ),
    Rule(
        "token_ppo.critic.warmup",
        lambda s, f: f.hidden_last_layer and s.ppo.critic.warmup is not None and s.ppo.critic.warmup.type == "fit",
        "sets the value head's last layer, which DeepSpeed in half precision allows with ZeRO only: set "
        "`deepspeed.zero_optimization.stage` to 1, 2 or 3, or `type: gradient`",
        "{deepspeed: {bf16: {enabled: true}}, token_ppo: {critic: {warmup: {iterations: 1}}}}",
    ),
    Rule(
        "token_ppo.critic.normalization",
        lambda s, f: f.hidden_last_layer and s.ppo.critic.normalization == "popart",
        "sets the value head's last layer, which DeepSpeed in half precision allows with ZeRO only: set "
        "`deepspeed.zero_optimization.stage` to 1, 2 or 3, or `normalization: none`",
        "{deepspeed: {bf16: {enabled: true}}, token_ppo: {critic: {normalization: popart}}}",
    ),
    Rule(
        "token_ppo.critic.grad_clip",
        lambda s, f: not f.one_norm_each,
        "DeepSpeed clips by one norm of all gradients with ZeRO and in half precision; leave it out, or use "
        "`zero_optimization: {{stage: 0}}` in float32",
        "{deepspeed: {zero_optimization: {stage: 2}}, token_ppo: {critic: {grad_clip: 1}}}",
        where_set=True,
    ),
    _known("token_ppo.advantage_estimator", lambda s, f: f.estimator, "token_ppo: {advantage_estimator: gaee}"),
    Rule(
        "data_selection.normalize_rewards",
        lambda s, f: s.data.normalize_rewards.type == "group" and f.is_max_rl,
        "group makes the mean of every group 0, for which token_ppo.advantage_estimator `max_rl` learns nothing",
        "{token_ppo: {advantage_estimator: max_rl}, text_rollouts: {group_size: 2}, "
        "data_selection: {normalize_rewards: group}}",
    ),
    _known("token_ppo.objective", lambda s, f: f.objective, "token_ppo: {objective: ppoo}"),
    no_effect(
        "token_ppo.importance.cap",
        lambda s, f: (
            not s.ppo.policy_loss.to_sampler or (_cap(s) is None and not s.follows("token_ppo.importance.cap"))
        ),
        "with policy_loss: {s.ppo.policy_loss.type}, whose ratio is to the sampler; leave it out",
        "token_ppo: {policy_loss: dppo, importance: {cap: 3}}",
    ),
    no_effect(
        "token_ppo.importance.level",
        lambda s, f: _cap(s) is not None and not s.ppo.policy_loss.to_sampler,
        "without weights (importance.cap)",
        "token_ppo: {importance: {cap: null, level: turn}}",
    ),
    Rule(
        "token_ppo.entropy.target",
        lambda s, f: s.ppo.entropy is not None and isinstance(s.rllib.entropy_coeff, list),
        "does not go with a schedule, entropy_coeff: {s.rllib.entropy_coeff}; give the number that it begins with",
        "{entropy_coeff: [[0, 0.01], [100, 0]], token_ppo: {entropy: {target: 1}}}",
    ),
)


def _values(s: Settings) -> Any:
    """The section ``action_values``; ``None`` in an algorithm without it."""
    return s.sections.get(ACTION_VALUES)


def _plays_by_values(s: Settings) -> bool:
    return _values(s) is not None and _values(s).beta > 0


def _value_backbones(s: Settings) -> bool:
    """Whether action values of some policy have a backbone of their own."""
    return any(s.model_of(name).value_model == "separate" for name in s.trained_policies())


CRITIC = (
    Rule(
        "language_model.value_model",
        lambda s, f: s.lm.value_model == "separate" and not f.needs_critic and _values(s) is None,
        "separate has no effect with {f.asks_no_critic}, which asks no value function",
        "{token_ppo: {advantage_estimator: reinforce}, language_model: {value_model: separate}}",
    ),
)
NO_CRITIC = (
    Rule(
        "token_ppo.advantage_estimator",
        lambda s, f: f.needs_critic,
        "`{f.estimator_name}` needs a critic, which {s.entry.name} has none of; take LMGamePPO, or one of "
        "{f.without_critic}",
        "{run: LMGameGRPO, token_ppo: {advantage_estimator: gae}}",
    ),
)
STATES = (
    Rule(
        "token_ppo.kl.in",
        lambda s, f: s.ppo.kl is not None and s.ppo.kl.in_ == "reward" and f.estimator.state_rollouts,
        "reward does not go with advantage_estimator `{f.estimator_name}`: its rollouts have no penalty on their "
        "tokens, so that values would be of other rewards; use in: loss",
        "token_ppo: {advantage_estimator: vine, kl: {in: reward}}",
    ),
    Rule(
        "data_selection.normalize_rewards",
        lambda s, f: s.data.normalize_rewards.type != "none" and f.estimator.state_rollouts,
        "does not go with advantage_estimator `{f.estimator_name}`, whose values are in the game's own rewards; leave "
        "it out",
        "{token_ppo: {advantage_estimator: vine}, data_selection: {normalize_rewards: batch}}",
    ),
)
FOLLOWED = (
    no_effect(
        "entropy_coeff",
        lambda s, f: s.ppo.entropy is None,
        "beside token_ppo.entropy, which moves the coefficient; leave one of them out",
        "{token_ppo: {entropy: {target: 1}}, entropy_coeff: {points: [[0, 0.1], [9, 0]]}}",
    ),
    no_effect(
        "kl_coeff", lambda s, f: s.ppo.kl is not None, "without token_ppo.kl", "kl_coeff: {points: [[0, 0.1], [9, 0]]}"
    ),
    Rule(
        "kl_coeff",
        lambda s, f: _kl_schedule(s) is not None,
        "stands beside token_ppo.kl.schedule; leave one of them out",
        "{token_ppo: {kl: {schedule: [[0, 0.1]]}}, kl_coeff: {points: [[0, 0.1]]}}",
    ),
    no_effect(
        "token_ppo.kl.coeff_range",
        lambda s, f: _kl_schedule(s) is None and not s.follows("kl_coeff"),
        "beside a schedule of the coefficient; leave one of them out",
        "{kl_coeff: {points: [[0, 1]]}, token_ppo: {kl: {coeff_range: {points: [[0, 9]]}}}}",
    ),
    Rule(
        "kl_coeff",
        lambda s, f: not s.follows("token_ppo.kl.coeff_range") and s.is_set("token_ppo.kl.coeff_range"),
        "stands beside token_ppo.kl.coeff_range, which then has no effect; leave one of them out",
        "{token_ppo: {kl: {coeff_range: 9}}, kl_coeff: {points: [[0, 0.1]]}}",
    ),
)
"""Of options that follow a schedule: what would leave it without effect on a policy."""
BASELINE = (
    Rule(
        "text_rollouts.reward_scale",
        lambda s, f: s.follows("text_rollouts.reward_scale") and f.estimator.keeps_baseline,
        "stands beside token_ppo.advantage_estimator: {f.estimator_name} of {s.name}, whose running baselines are in "
        "scaled rewards: they would be those of another scale; leave one of them out",
        "{token_ppo: {advantage_estimator: rae}, text_rollouts: {reward_scale: {points: [[0, 1], [9, 2]]}}}",
    ),
)

# -- what is played, and what is trained on ---------------------------------------------------------------------------


def _kept(s: Settings) -> int:
    return share_of_groups(s.data.keep_groups, s.groups)


def _spare(s: Settings) -> int:
    return spare_groups(s.groups, s.data.oversample)


def _parts(s: Settings, f: Any) -> ConfigError | None:
    """What a game says of its ``episodes`` must be whole groups."""
    for number, (game, size) in enumerate(zip(s.games, s.group_sizes, strict=True)):
        if game.episodes and game.episodes % size:
            say = f"{game.episodes} is not a multiple of group_size={size}"
            return ConfigError(f"games[{number}].episodes", say)
    return None


def _one_size(s: Settings, f: Any) -> ConfigError | None:
    """Games that share by weight have groups of one size."""
    for number, (game, size) in enumerate(zip(s.games, s.group_sizes, strict=True)):
        if not game.episodes and size != s.shared_size:
            say = f"{size} differs from {s.shared_size} of another game with a `weight`; set `episodes` of this one"
            return ConfigError(f"games[{number}].group_size", say)
    return None


def _does_not_add_up(s: Settings) -> str | None:
    """What is wrong with an iteration whose games say their ``episodes``: something must be left to the others."""
    exact = [game.episodes for game in s.games]
    total, named = s.play.episodes_per_iteration, sum(count or 0 for count in exact)
    if not named or (total == named if all(exact) else total > named):
        return None
    left = "" if all(exact) else ", which leaves nothing to the games with a `weight`"
    return f"{total}, but `episodes` of games come to {named}{left}; set {'' if all(exact) else 'more than '}{named}"


def _no_group(s: Settings) -> str | None:
    """Place of the ``group_size`` of a game without groups, if there is one."""
    if s.least_size > 1:
        return None
    number = next((number for number, size in enumerate(s.group_sizes) if size == 1), None)
    if number is None:
        return "text_rollouts.group_size"
    return "text_rollouts.group_size" if s.games[number].group_size is None else f"games[{number}].group_size"


def _without_groups(s: Settings, f: Any) -> ConfigError | None:
    place = f.compares and _no_group(s)
    return ConfigError(place, f"{f.compares} compares the episodes of a group; set at least 2") if place else None


PLAY = (
    Rule(
        "games[1].episodes",
        _parts,
        "must be whole groups",
        "games: [lmgame/Maze-v0, {env: lmgame/FrozenLake-v0, episodes: 15, group_size: 2}]",
    ),
    Rule(
        "games[1].group_size",
        _one_size,
        "must be that of the other games with a `weight`",
        "games: [lmgame/Maze-v0, {env: lmgame/FrozenLake-v0, group_size: 2}]",
    ),
    Rule(
        "text_rollouts.episodes_per_iteration",
        lambda s, f: _does_not_add_up(s),
        "must be what `episodes` of games come to, or more where other games share the rest",
        "games: [{env: lmgame/Maze-v0, episodes: 32}, {env: lmgame/FrozenLake-v0, episodes: 16}]",
    ),
    Rule(
        "text_rollouts.episodes_per_iteration",
        lambda s, f: (
            s.shared_episodes % s.shared_size and f"{s.shared_episodes} is not a multiple of group_size={s.shared_size}"
        ),
        "must be whole groups",
        "text_rollouts: {episodes_per_iteration: 64, group_size: 3}",
    ),
    Rule(
        "text_rollouts.episodes_per_iteration",
        lambda s, f: s.play.episodes_per_iteration < max(1, s.rllib.num_learners),
        "each learner needs at least one episode",
        "{num_learners: 2, text_rollouts: {episodes_per_iteration: 1}}",
    ),
    Rule(
        "text_rollouts.group_size",
        _without_groups,
        "the episodes of a group are compared; set at least 2",
        "token_ppo: {advantage_estimator: grpo}",
    ),
    Rule(
        "text_rollouts.episodes_per_iteration",
        lambda s, f: (
            f.compares
            and s.groups < s.rllib.num_learners
            and f"{f.compares} needs whole groups and each learner at least one: with group_size={s.shared_size} "
            f"and num_learners={s.rllib.num_learners} that is {s.shared_size * s.rllib.num_learners} episodes"
        ),
        "whole groups are needed, and for each learner at least one",
        "{num_learners: 3, token_ppo: {advantage_estimator: grpo}, "
        "text_rollouts: {episodes_per_iteration: 16, group_size: 8}}",
    ),
)
SELECTION = (
    *(
        Rule(
            f"data_selection.{name}",
            lambda s, f, asks=asks: (
                asks(s.data) and _no_group(s) and f"compares the episodes of a group; set {_no_group(s)} to at least 2"
            ),
            "compares the episodes of a group",
            f"data_selection: {{{name}: {value}}}",
        )
        for name, value, asks in (
            ("keep_groups", "0.5", lambda data: data.keep_groups < 1),
            ("constant_groups", "drop", lambda data: data.constant_groups.type == "drop"),
            ("normalize_rewards", "group", lambda data: data.normalize_rewards.type == "group"),
        )
    ),
    Rule(
        "data_selection.keep_groups",
        lambda s, f: (
            s.data.keep_groups < 1
            and _kept(s) < (least := groups_needed(s.rllib.num_learners, s.least_size, bool(f.compares)))
            and f"{s.data.keep_groups:g} of {s.groups} groups leaves {_kept(s)}, but {least} must stay"
            + (f", {'one' if f.compares else 'an episode'} for each learner" if least > 1 else "")
        ),
        "too few groups stay; set a larger share",
        "{text_rollouts: {episodes_per_iteration: 8, group_size: 4}, data_selection: {keep_groups: 0.2}}",
    ),
    Rule(
        "data_selection.overlong.buffer",
        lambda s, f: s.data.overlong is not None and s.data.overlong.buffer >= s.data.overlong.tokens,
        "must be less than tokens={s.data.overlong.tokens}, got {s.data.overlong.buffer}",
        "data_selection: {overlong: {tokens: 64, buffer: 64}}",
    ),
    *(
        Rule("data_selection.oversample", lambda s, f, bad=bad: s.data.oversample > 1 and bad(s), say, example)
        for bad, say, example in (
            (
                lambda s: s.play.deterministic is True,
                "contradicts text_rollouts.deterministic: who finishes first is no rule; leave one of them out",
                "{text_rollouts: {deterministic: true}, data_selection: {oversample: 2}}",
            ),
            (
                lambda s: s.league,
                "does not go with a `league`: its pay-offs would hardly count the games that take longest (draws, "
                "often); leave one of them out",
                "{env: lmgame/TicTacToe-v0, league: {}, data_selection: {oversample: 2}}",
            ),
            (
                lambda s: s.rllib.num_envs_per_env_runner == 1,
                "has no effect with num_envs_per_env_runner: 1, where no game is in play beside another; set at "
                "least 2",
                "{num_envs_per_env_runner: 1, data_selection: {oversample: 2}}",
            ),
            (
                lambda s: (
                    s.rllib.num_env_runners > s.groups
                    and f"makes each env runner stop by itself, after whole groups: {s.groups} of them are too few "
                    f"for num_env_runners={s.rllib.num_env_runners}; set at most {s.groups}"
                ),
                "groups are too few for so many env runners",
                "{num_env_runners: 3, text_rollouts: {episodes_per_iteration: 2}, data_selection: {oversample: 4}}",
            ),
            (
                lambda s: (
                    s.rllib.num_env_runners > _spare(s)
                    and f"{s.data.oversample:g} times {s.groups} groups are {_spare(s)} more than are needed, and "
                    f"each of {s.rllib.num_env_runners} env runners must have one to spare; set at least "
                    f"{math.ceil((1 + s.rllib.num_env_runners / s.groups) * 1e4 - 1e-6) / 1e4:g}"
                ),
                "each env runner needs a group to spare; set more",
                "{num_env_runners: 2, text_rollouts: {episodes_per_iteration: 4}, data_selection: {oversample: 1.25}}",
            ),
        )
    ),
)
OVERLAP = tuple(
    Rule("overlap.max_staleness", lambda s, f, bad=bad: s.overlap.max_staleness > 0 and bad(s, f), say, example)
    for bad, say, example in (
        (
            lambda s, f: s.play.deterministic is True,
            "contradicts text_rollouts.deterministic: which weights sample a reply depends on when it is asked for; "
            "leave one of them out",
            "{num_env_runners: 1, text_rollouts: {deterministic: true}, overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: f.plays_on,
            "does not go with advantage_estimator `vine`, which values states under the weights that are trained; use "
            "another one, or leave it out",
            "{num_env_runners: 1, token_ppo: {advantage_estimator: vine}, overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: any(s.policy(name).ppo.importance is None for name in s.trained_policies()),
            "needs token_ppo.importance: without weights between sampler and learner nothing corrects for replies of "
            "older weights",
            "{num_env_runners: 1, token_ppo: {importance: null}, overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: any(limit < s.overlap.max_staleness for limit in _staleness_limits(s)),
            "{s.overlap.max_staleness} is more than token_ppo.staleness_limit, which would leave out of the loss what "
            "is played ahead",
            "{num_env_runners: 1, token_ppo: {staleness_limit: 0}, overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: s.inf.sleep_during_update,
            "does not go with inference.sleep_during_update: engines that sleep play no games; leave one of them out",
            "{num_env_runners: 1, inference: {sleep_during_update: true, num_gpus_per_engine: 1}, "
            "overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: s.league is not None and s.league.snapshot_every == 1,
            "has no effect with league.snapshot_every: 1, since a snapshot is taken before each iteration begins; set "
            "at least 2",
            "{env: lmgame/TicTacToe-v0, num_env_runners: 1, league: {snapshot_every: 1}, overlap: {max_staleness: 1}}",
        ),
        (
            lambda s, f: s.rllib.num_env_runners == 0 and not f.rllib.in_evaluation,
            "needs env runners of its own: with num_env_runners: 0 games are played in the process that updates; set "
            "at least 1",
            "overlap: {max_staleness: 1}",
        ),
    )
)
OVERLONG = (
    Rule(
        "data_selection.overlong.tokens",
        lambda s, f: (
            s.data.overlong is not None
            and s.data.overlong.tokens - s.data.overlong.buffer >= f.longest_reply(s)
            and f"has no effect: no reply is longer than language_model.max_tokens_per_turn={f.longest_reply(s)}; set "
            "less, or a buffer"
        ),
        "has no effect: no reply is so long; set less, or a buffer",
        "data_selection: {overlong: {tokens: 128}}",
    ),
)

# -- a league ---------------------------------------------------------------------------------------------------------


def _win_rates(s: Any) -> list[float | None]:
    return [options.win_rate for options in s.league.exploiter_options.values()] + [s.league.snapshot_win_rate]


def _exploiters(s: Any, f: Any) -> ConfigError | None:
    """Who is to beat whom."""
    exploiters, policies, key = s.league.exploiter_options, s.trained_policies(), "config.league.exploiters"
    for name, options in exploiters.items():
        for policy, path in ((name, f"{key}.{name}"), (options.of, f"{key}.{name}.of")):
            if policy not in policies:
                hint = did_you_mean(policy, policies, f"policies that learn: {', '.join(policies)}")
                return ConfigError(path, f"{policy!r} is no policy that learns; {hint}")
        if options.of in exploiters:
            what = "itself" if options.of == name else "another exploiter"
            return ConfigError(f"{key}.{name}.of", f"is {what}; an exploiter is to beat a policy that is none")
    return None


def _meeting(s: Any) -> list[str]:
    """Policies that meet members."""
    exploiters, share = s.league.exploiter_options, s.league.self_play_share
    return [name for name in s.trained_policies() if share_without_members(exploiters.get(name), share) < 1]


def _names(s: Settings, f: Any) -> ConfigError | None:
    policies = s.trained_policies()
    for policy in policies:
        stem, _, number = policy.rpartition("-")
        if stem in policies and number.isdecimal():
            return ConfigError(
                f"config.policies.{policy}", f"is what a league calls a past version of {stem}; choose another name"
            )
    return None


def _models(s: Settings, f: Any) -> ConfigError | None:
    first, *others = s.trained_policies()
    for policy in others:
        if _without_seed(s.model_of(policy)) != _without_seed(s.model_of(first)):
            return ConfigError(
                f"config.policies.{policy}.language_model",
                f"differs from that of {first}: the policies of a league share its opponent engines, so they need the "
                "same model and the same options",
            )
    return None


def _without_seed(options: Any) -> Any:
    """The options but for what tells two untrained tiny models apart."""
    return options.model_copy(update={"tiny": {key: value for key, value in options.tiny.items() if key != "seed"}})


_OF_TWO = "env: lmgame/TicTacToe-v0, policies: [a, b]"
LEAGUE = (
    Rule(
        "policy_mapping_fn",
        lambda s, f: s.seats is not None and not is_league(s.seats),
        "must be `league` beside a `league` section, or left out; the league seats",
        "{env: lmgame/TicTacToe-v0, policy_mapping_fn: self_play, league: {}}",
    ),
    _known(
        "league.matchmaking", lambda s, f: f.matchmaker, "{env: lmgame/TicTacToe-v0, league: {matchmaking: pfsp_hrad}}"
    ),
    Rule(
        "league.self_play_share",
        lambda s, f: s.league.self_play_share == 1 and not s.league.exploiters,
        "1 leaves no matches against members; set less than 1",
        "{env: lmgame/TicTacToe-v0, league: {self_play_share: 1}}",
    ),
    Rule(
        "league.forgotten.share",
        lambda s, f: s.league.forgotten is not None and s.league.self_play_share + s.league.forgotten.share > 1,
        "{s.league.forgotten.share:g} and self_play_share={s.league.self_play_share:g} are more than 1 together",
        "{env: lmgame/TicTacToe-v0, league: {self_play_share: 0.6, forgotten: {share: 0.6}}}",
    ),
    Rule(
        "league.snapshot_every",
        lambda s, f: s.league.snapshot_every is None and s.league.snapshot_win_rate is None,
        "null needs a snapshot_win_rate: no snapshot is ever due",
        "{env: lmgame/TicTacToe-v0, league: {snapshot_every: null}}",
    ),
    Rule(
        "league.snapshot_win_rate",
        lambda s, f: s.league.snapshot_every is None and s.league.snapshot_win_rate == 1,
        "1 is never exceeded: with snapshot_every: null no snapshot but the first is ever due",
        "{env: lmgame/TicTacToe-v0, league: {snapshot_every: null, snapshot_win_rate: 1}}",
    ),
    Rule(
        "league.averaged_snapshots",
        lambda s, f: s.league.averaged_snapshots and not s.averages,
        "needs averaged weights: set config.token_ppo.ema_decay",
        "{env: lmgame/TicTacToe-v0, league: {averaged_snapshots: true}}",
    ),
    no_effect(
        "league.snapshot_min_games",
        lambda s, f: any(rate is not None for rate in _win_rates(s)),
        "without snapshot_win_rate",
        "{env: lmgame/TicTacToe-v0, league: {snapshot_min_games: 9}}",
    ),
    Rule(
        "league.exploiters.b.of",
        _exploiters,
        "an exploiter is to beat a policy that learns and is no exploiter itself",
        f"{{{_OF_TWO}, league: {{exploiters: {{b: {{of: b}}}}}}}}",
    ),
    Rule(
        "league.opponent_engines",
        lambda s, f: (
            s.league.opponent_engines < len(meeting := _meeting(s))
            and f"{s.league.opponent_engines} engines do not suffice for {len(meeting)} policies that meet members "
            f"({', '.join(meeting)}); each needs one"
        ),
        "each policy that meets members needs an engine for them",
        f"{{{_OF_TWO}, league: {{}}}}",
    ),
    Rule(
        "league.max_members",
        lambda s, f: (
            s.league.max_members < (learning := len(s.trained_policies()))
            and f"{s.league.max_members} members do not suffice for {learning} policies that learn: each has one at "
            "least"
        ),
        "each policy that learns has a member at least",
        f"{{{_OF_TWO}, league: {{opponent_engines: 2, max_members: 1}}}}",
    ),
    Rule(
        "policies.a-1",
        _names,
        "is what a league calls a past version of a policy; choose another name",
        "{env: lmgame/TicTacToe-v0, policies: [a, a-1], league: {opponent_engines: 2}}",
    ),
    Rule(
        "policies.b.language_model",
        _models,
        "policies of a league need the same model and the same options",
        "{env: lmgame/TicTacToe-v0, league: {opponent_engines: 2}, "
        "policies: {a: {}, b: {language_model: {max_tokens_per_turn: 16}}}}",
    ),
)

# -- engines ----------------------------------------------------------------------------------------------------------


def _over_devices(key: str, bad: Callable[[Settings, Any], Any], say: str, example: str) -> Rule:
    """A rule for weights that go from GPU to GPU."""
    return Rule(key, lambda s, f: s.inf.over_devices and bad(s, f), say, example)


def _without_adapters(s: Settings) -> list[str]:
    return [policy for policy in s.trained_policies() if s.model_of(policy).lora is None]


def _base_of(s: Settings, policy: str) -> str:
    """What an engine is made of that holds a policy's model."""
    options = s.model_of(policy)
    own = (options.model, sorted(options.tiny.items()), options.tokenizer, options.context_length)
    return repr((own, options.trust_remote_code))


_GPUS = "num_gpus_per_engine={s.inf.num_gpus_per_engine:g} and num_gpus_per_learner={s.rllib.num_gpus_per_learner:g}"
ENGINES = (
    Rule(
        "inference.num_gpus_per_engine",
        lambda s, f: s.inf.num_gpus_per_engine != s.inf.tensor_parallel_size > 1,
        "must equal tensor_parallel_size={s.inf.tensor_parallel_size}, got {s.inf.num_gpus_per_engine:g}",
        "inference: {tensor_parallel_size: 2}",
    ),
    _known("inference.engine", lambda s, f: f.engine, "inference: {engine: vlm}"),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: not s.inf.num_gpus_per_engine,
        "{s.inf.weight_transport!r} needs engines on GPUs; use object_store",
        "inference: {weight_transport: nccl}",
    ),
    _over_devices(
        "num_gpus_per_learner",
        lambda s, f: not s.rllib.num_gpus_per_learner,
        "is 0, but inference.weight_transport: {s.inf.weight_transport} needs learners on GPUs; use object_store",
        "inference: {weight_transport: nccl, num_gpus_per_engine: 1}",
    ),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: not f.engine.over_devices,
        "{s.inf.weight_transport!r} needs engine: vllm, or another that takes weights from GPU to GPU; "
        "`{f.engine.name}` takes object_store",
        "{num_gpus_per_learner: 1, inference: {engine: transformers, weight_transport: nccl, num_gpus_per_engine: 1}}",
    ),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: (
            s.inf.weight_transport == "nccl" and (s.inf.num_gpus_per_engine % 1 or s.rllib.num_gpus_per_learner % 1)
        ),
        f"'nccl' needs whole GPUs for every engine and learner, got {_GPUS}: NCCL does not connect two processes on "
        "one GPU; use object_store",
        "{num_gpus_per_learner: 0.5, inference: {weight_transport: nccl, num_gpus_per_engine: 0.5}}",
    ),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: s.inf.weight_transport == "ipc" and s.inf.num_gpus_per_engine + s.rllib.num_gpus_per_learner > 1,
        f"'ipc' needs learner and engine on one GPU, got {_GPUS}, which must be at most 1 together; use object_store",
        "{num_gpus_per_learner: 1, inference: {weight_transport: ipc, num_gpus_per_engine: 1}}",
    ),
    _over_devices(
        "inference.num_engines",
        lambda s, f: s.inf.weight_transport == "ipc" and s.inf.num_engines > 1,
        "must be 1 with inference.weight_transport: ipc, where learner and engine share a GPU; got {s.inf.num_engines}",
        "{num_gpus_per_learner: 0.5, inference: {weight_transport: ipc, num_gpus_per_engine: 0.2, num_engines: 2}}",
    ),
    _over_devices(
        "num_learners",
        lambda s, f: s.inf.weight_transport == "ipc" and s.rllib.num_learners > 1,
        "must be 1 with inference.weight_transport: ipc, where learner and engine share a GPU; got "
        "{s.rllib.num_learners}",
        "{num_gpus_per_learner: 0.5, num_learners: 2, inference: {weight_transport: ipc, num_gpus_per_engine: 0.2}}",
    ),
    Rule(
        "inference.engine",
        lambda s, f: (
            _plays_by_values(s)
            and not (f.engine.plays_value_backbone if _value_backbones(s) else f.engine.plays_values)
            and f"`{f.engine.name}` cannot add action values{' of a backbone of their own' * _value_backbones(s)} to "
            f"logits; take transformers,{' value_model: shared,' * _value_backbones(s)} or action_values.beta: 0, with "
            "which the policy plays alone"
        ),
        "the engine cannot add these action values to logits",
        "{run: LMGameILQL, language_model: {value_model: separate}, inference: {engine: vllm}}",
    ),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: _plays_by_values(s),
        "'{s.inf.weight_transport}' does not send action values; use object_store",
        "{run: LMGameILQL, num_gpus_per_learner: 1, "
        "inference: {engine: vllm, weight_transport: nccl, num_gpus_per_engine: 1}}",
    ),
    Rule(
        "language_model.lora",
        lambda s, f: _values(s) is not None and s.lm.lora is not None,
        "{s.entry.name} trains whole weights and values of tokens beside them; leave it out",
        "{run: LMGameILQL, language_model: {lora: {}}}",
    ),
    Rule(
        "deepspeed",
        lambda s, f: _values(s) is not None and s.deepspeed is not None,
        "{s.entry.name} keeps slow copies of its values on each learner, which are not spread; leave it out",
        "{run: LMGameILQL, deepspeed: {zero_optimization: {stage: 2}}}",
    ),
    Rule(
        "inference.adapters",
        lambda s, f: s.inf.adapters and not f.engine.serves_adapters,
        "needs engine: vllm; `{f.engine.name}` holds merged weights",
        "{language_model: {lora: {}}, inference: {engine: transformers, adapters: true}}",
    ),
    Rule(
        "inference.adapters",
        lambda s, f: s.inf.adapters and _without_adapters(s),
        "needs language_model.lora for all policies that learn",
        "inference: {adapters: true}",
    ),
    Rule(
        "inference.adapters",
        lambda s, f: s.inf.adapters and len({_base_of(s, policy) for policy in s.trained_policies()}) > 1,
        "needs the same model, tokenizer and context_length for all policies that learn",
        "{env: lmgame/TicTacToe-v0, language_model: {lora: {}}, inference: {adapters: true}, "
        "policies: {a: {}, b: {language_model: {tiny: {seed: 1}}}}}",
    ),
    Rule(
        "inference.engine_kwargs",
        lambda s, f: f.engine.serves_adapters and not s.inf.engine_kwargs.keys().isdisjoint(ADAPTER_ARGUMENTS),
        f"cannot say {', '.join(ADAPTER_ARGUMENTS)}: they are what `inference.adapters: true` sets",
        "inference: {engine_kwargs: {enable_lora: true}}",
    ),
    _over_devices(
        "inference.weight_transport",
        lambda s, f: s.inf.adapters,
        "{s.inf.weight_transport!r} does not go with inference.adapters; use object_store",
        "{num_gpus_per_learner: 1, language_model: {lora: {}}, "
        "inference: {adapters: true, weight_transport: nccl, num_gpus_per_engine: 1}}",
    ),
    Rule(
        "inference.sleep_during_update",
        lambda s, f: s.inf.adapters and s.inf.sleep_during_update,
        "does not go with inference.adapters",
        "{language_model: {lora: {}}, inference: {adapters: true, sleep_during_update: true, num_gpus_per_engine: 1}}",
    ),
    Rule(
        "inference.sleep_during_update",
        lambda s, f: s.inf.sleep_during_update and s.inf.num_gpus_per_engine == 0,
        "needs engines on GPUs: there is no GPU memory to give back on a CPU",
        "inference: {sleep_during_update: true}",
    ),
)


# -- taken and told ---------------------------------------------------------------------------------------------------

_OF_A_CRITIC = (
    "vf_loss_coeff",
    *(f"token_ppo.{name}" for name in leaves(TokenPPOOptions) if name.startswith("critic.")),
)
_OF_VALUES = ("language_model.value_hidden_size", "language_model.freeze_backbone_for_value")
"""What action values read, too."""
_STEPS = ("lr", "num_epochs", "token_ppo.num_minibatches", "token_ppo.lr_warmup_steps")
"""What updates read that take their steps as PPO does."""
_PPO_ALONE = (
    *("gamma", "lambda", "entropy_coeff", "kl_coeff", "kl_target"),
    *(
        f"token_ppo.{name}"
        for name, each in leaves(TokenPPOOptions).items()
        if not each.says.get("always")
        if f"token_ppo.{name}" not in _STEPS
    ),
    *(key for key in _OF_A_CRITIC if not key.startswith("token_ppo.")),
)


def _adapts(s: Settings) -> bool:
    """Whether the coefficient of the KL penalty goes by the divergence."""
    return _kl_schedule(s) is None and not s.follows("kl_coeff")


def _only_measured(s: Settings) -> bool:
    """Whether the coefficient of the KL penalty is 0 throughout."""
    if s.follows("kl_coeff"):
        return False
    return not any(coefficient for _, coefficient in _kl_schedule(s) or [[0, s.rllib.kl_coeff]])


def _penalised(s: Settings, f: Any) -> bool:
    return s.ppo.kl is not None or f.own_objective


TOLD = (
    Told(
        _STEPS,
        lambda s, f: s.entry.learned_by not in (TOKEN_PPO, PREFERENCES),
        "{s.entry.name} learns by the options of config.{s.entry.learned_by}",
        "{run: LMGameSFT, lr: 0.1}",
    ),
    Told(
        _PPO_ALONE,
        lambda s, f: s.entry.learned_by != TOKEN_PPO,
        "{s.entry.name} learns by the options of config.{s.entry.learned_by}",
        "{run: LMGameSFT, gamma: 0.9}",
    ),
    Told(
        _OF_A_CRITIC,
        lambda s, f: not f.needs_critic,
        "no trained policy has a critic (token_ppo.advantage_estimator: {f.estimator_name})",
        "{token_ppo: {advantage_estimator: reinforce}, vf_loss_coeff: 0.1}",
    ),
    Told(
        _OF_VALUES,
        lambda s, f: not f.needs_critic and _values(s) is None,
        "no trained policy has a value function",
        "{run: LMGameSFT, language_model: {value_hidden_size: 64}}",
    ),
    Told(
        ("supervised.observation_weight",),
        lambda s, f: _values(s) is not None and _values(s).policy_weight == 0,
        "the policy stays what it is (action_values.policy_weight: 0)",
        "{run: LMGameMC, supervised: {observation_weight: 0.1}, action_values: {policy_weight: 0}}",
    ),
    Told(
        ("lambda",),
        lambda s, f: not f.reads("lam") and not (s.ppo.critic.target == "gae" and f.needs_critic),
        "token_ppo.advantage_estimator ({f.estimator_name}) does not read it as it is set",
        "{token_ppo: {advantage_estimator: reinforce}, lambda: 0.9}",
    ),
    Told(
        ("gamma",),
        lambda s, f: not f.reads("gamma"),
        "token_ppo.advantage_estimator ({f.estimator_name}) does not discount",
        "{token_ppo: {advantage_estimator: rloo}, text_rollouts: {group_size: 2}, gamma: 0.9}",
    ),
    Told(
        ("kl_coeff",),
        lambda s, f: not _penalised(s, f) or _kl_schedule(s) is not None,
        "no KL penalty begins with it; set token_ppo.kl, with no schedule in it",
        "kl_coeff: 0.1",
    ),
    Told(
        ("kl_target",),
        lambda s, f: not _penalised(s, f) or not _adapts(s),
        "no KL coefficient goes by it; set token_ppo.kl, with no schedule of it or of kl_coeff",
        "kl_target: 0.1",
    ),
    Told(
        ("token_ppo.kl", "kl_target", "token_ppo.kl.coeff_range"),
        lambda s, f: s.ppo.kl is not None and _only_measured(s) and not f.own_objective,
        "the coefficient is 0 and stays 0, so updates only measure the divergence (mean_kl_loss), by a pass of the "
        "reference, which is kept for it; `token_ppo.kl: null` leaves both out",
        "{token_ppo: {kl: {}}, kl_coeff: 0, kl_target: 0.1}",
        effect="",
    ),
    Told(
        ("token_ppo.advantage_std_floor",),
        lambda s, f: not f.scales,
        "advantages are not divided by their deviation (normalize_advantages)",
        "token_ppo: {normalize_advantages: none, advantage_std_floor: 0.1}",
    ),
    Told(
        tuple(f"evaluation_config.{key}" for key in ("measures", "at_start", "samples", "best")),
        lambda s, f: not s.rllib.evaluation_interval,
        "there are no evaluations; set config.evaluation_interval",
        "{env: lmgame/TicTacToe-v0, evaluation_config: {measures: [tic_tac_toe]}}",
    ),
    Told(
        ("evaluation_config.best_order",),
        lambda s, f: s.evaluation.best is None,
        "evaluation_config.best names no metric",
        "{evaluation_interval: 1, evaluation_config: {best_order: min}}",
    ),
    Told(
        ("data_selection.constant_groups.type",),
        lambda s, f: s.inf.temperature == 0 and not s.follows("inference.temperature"),
        "with inference.temperature: 0 all episodes of a group are alike unless the other players draw",
        "{text_rollouts: {group_size: 2}, data_selection: {constant_groups: drop}, inference: {temperature: 0}}",
    ),
    Told(
        ("data_selection.constant_groups.type",),
        lambda s, f: s.sections.get("teacher") is not None and not s.data.constant_groups.max_refill,
        "a teacher has something to say of groups whose returns are all alike, too: they stay",
        "{teacher: {model: somebody/teacher}, text_rollouts: {group_size: 2}, data_selection: {constant_groups: drop}}",
    ),
    *(
        Told(
            (f"{stage}.lr_warmup_steps", f"{stage}.max_steps"),
            lambda s, f: s.supervised is not None and s.supervised.lr_warmup_steps > s.supervised.max_steps,
            "{s.supervised.lr_warmup_steps} steps of warm-up are more than max_steps: {s.supervised.max_steps}, so "
            f"that the learning rate never comes to lr: {{s.supervised.lr:g}}; set {stage}.lr_warmup_steps to fewer",
            example,
            effect="",
        )
        for stage, example in (
            ("warm_start", "warm_start: {max_steps: 20}"),
            ("supervised", "{run: LMGameSFT, supervised: {max_steps: 20}}"),
        )
    ),
)


def _points_problem(points: Any) -> ConfigError | None:
    try:
        check_points(points, "config.token_ppo.kl.schedule")
    except ConfigError as error:
        return error
    return None
