"""Options that are impossible together, lose work, or train something wrong: functions that yield what is broken.

``s`` are the :class:`~rllib_lmgame.config.run.RunConfig` of a run or of one policy; ``f`` is what some rules need
beside it (:mod:`rllib_lmgame.algorithms.validation`). Importing this loads neither Ray nor torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rllib_lmgame.config.run import RunConfig
from rllib_lmgame.datasets.options import SupervisedOptions
from rllib_lmgame.envs.support.addresses import check_address
from rllib_lmgame.league.options import is_league
from rllib_lmgame.learners.options import divides_weights, half_precision, offloaded, optimizer_is_guarded
from rllib_lmgame.measures.collapse import RESTORE
from rllib_lmgame.rollouts.options import groups_needed, share_of_groups, spare_groups


class Broken(NamedTuple):
    """A rule that is broken, by the option's key below ``config``; ``beside`` are named instead if a policy's own."""

    key: str
    message: str
    beside: tuple[str, ...] = ()


Found = Iterator[Broken]
Rules = Callable[[RunConfig, Any], Found]


def rllib(s: RunConfig, f: Any) -> Found:
    """RLlib's keys; ``f`` is the configuration."""
    if f.games and s.env is not None:
        yield Broken("games", f"stands beside env: {s.env}, which would not be played; add it to the list")
    evaluates = f.in_evaluation or (s.evaluation_interval and s.evaluation_config.best)
    if s.value("on_collapse.type") == RESTORE and not evaluates:
        yield Broken("on_collapse.type", "`restore` needs evaluation_interval and evaluation_config.best")


def lengths(s: RunConfig, f: Any) -> Found:
    """Tokens of a turn."""
    most, context = s.language_model.max_tokens_per_turn, s.language_model.context_length
    if most >= context:
        say = f"{most} leaves no room for a prompt in context_length={context}"
        yield Broken("language_model.max_tokens_per_turn", say, ("language_model.context_length",))
    if s.language_model.least_room > most:
        say = f"{s.language_model.min_tokens_per_turn} is more than max_tokens_per_turn={most}"
        yield Broken("language_model.min_tokens_per_turn", say, ("language_model.max_tokens_per_turn",))


def replies(s: RunConfig, f: Any) -> Found:
    """The form of replies, which ``f`` makes. Raises: ConfigError: there is none of the name."""
    form = f(s.language_model)
    if form.think_opening in form.tags:
        say = "is also language_model.think_tag, so that every action would be taken for reasoning; name another"
        yield Broken("language_model.answer_tag", say, ("language_model.think_tag",))
    if s.language_model.think == "required" and s.text_rollouts.constrained_decoding:
        yield Broken("language_model.think", "`required`, but text_rollouts.constrained_decoding writes no reasoning")


def numerics(s: RunConfig, f: Any) -> Found:
    """How a trained model is held."""
    dtype, copies = s.language_model.dtype, half_precision(s.deepspeed)
    if dtype in ("bfloat16", "float16") and not copies and (s.language_model.lora is None or dtype == "float16"):
        say = f"{dtype} weights lose small optimizer steps without float32 copies"
        yield Broken("language_model.dtype", f"{say}; use `auto`, or `deepspeed.bf16` or `deepspeed.fp16`")
    if s.deepspeed is not None and s.training.optimizer not in ("adamw", "muon"):
        yield Broken("training.optimizer", "must be adamw or muon beside deepspeed: checkpoints hold their moments")
    if s.training.optimizer == "muon" and not optimizer_is_guarded(s.deepspeed):
        yield Broken("training.optimizer", "`muon` needs whole matrices, which ZeRO divides: set stage 0 without bf16")
    zero = s.deepspeed.get("zero_optimization") if isinstance(s.deepspeed, dict) else None
    if offloaded(zero, "offload_param") and not divides_weights(s.deepspeed):
        yield Broken("deepspeed.zero_optimization.offload_param", "needs stage 3: DeepSpeed does not read it in others")
    if s.training.torch_compile and divides_weights(s.deepspeed):
        yield Broken("training.torch_compile", "does not go with ZeRO stage 3, whose hooks gather each layer's weights")


def imitation(s: RunConfig, f: Any) -> Found:
    """What needs a game where files alone are learned from."""
    stage = "warm_start" if s.warm_start else "supervised"
    for key, instead in _OF_STAGE.items() if s.supervised else ():
        if s.value(key) != type(s)().value(key):
            section = "agentevol" if s.agentevol and instead == "epochs" else "supervised"
            yield Broken(key, f"does nothing here; set {section}.{instead}")
    for key in (f"{stage}.stop_at", f"{stage}.test_episodes", "evaluation_interval"):
        if not s.plays and s.value(key):
            yield Broken(key, "there is no game to play; set config.env or config.evaluation_config.games")
    for key in ("max_steps", "steps_per_iteration", "epochs", "stop_at", "lr_scheduler_type") * bool(s.agentevol):
        if s.value(f"supervised.{key}") != getattr(SupervisedOptions(), key):
            yield Broken(f"supervised.{key}", "does nothing here; agentevol.iterations and agentevol.epochs set steps")


_OF_STAGE = {"lr": "lr", "num_epochs": "epochs", "training.lr_warmup_steps": "lr_warmup_steps"}
_OF_STAGE |= {"training.num_minibatches": "episodes_per_step"}
"""Options without effect on supervised steps: the option of `supervised` to set instead."""
_AT_ONE = "must be 1 with a teacher behind an endpoint, whose log-probabilities are at 1; name its directory"


def asked_teacher(s: RunConfig, f: Any) -> Found:
    """A teacher behind an endpoint knows each token's log-probability at temperature 1 alone."""
    teacher = s.teacher
    if teacher is None or not teacher.is_asked:
        return
    if s.inference.temperature not in (0, 1) or "inference.temperature" in s.schedules:
        yield Broken("inference.temperature", _AT_ONE)
    for number, game in enumerate(s.games):
        if f"games.{number}.temperature" in s.schedules or game.temperature not in (None, 0, 1):
            yield Broken(f"games[{number}].temperature", _AT_ONE)
    if s.text_rollouts.constrained_decoding:
        say = "does not go with a teacher behind an endpoint, which knows no other moves; name its directory"
        yield Broken("text_rollouts.constrained_decoding", say)


def row_lengths(s: RunConfig, f: Any) -> Found:
    """A row holds a reply and its prompt."""
    rows, most = s.training.max_row_tokens, s.language_model.max_tokens_per_turn
    if rows is not None and rows < most + 1:
        say = f"{rows} cannot hold one reply of language_model.max_tokens_per_turn={most} and its prompt"
        yield Broken("training.max_row_tokens", say)


def scheduled(s: RunConfig, f: Any) -> Found:
    """What else would set an option that follows a schedule."""
    estimator = s.training.advantage_estimator
    if "text_rollouts.reward_scale" in s.schedules and estimator.keeps_baseline:
        say = f"cannot change beside {estimator.type} of {s.name}, whose running baselines are in scaled rewards"
        yield Broken("text_rollouts.reward_scale", say)


def _no_group(s: RunConfig) -> str | None:
    """Place of the ``group_size`` of a game without groups, if there is one."""
    if s.least_size > 1:
        return None
    number = next((number for number, size in enumerate(s.group_sizes) if size == 1), None)
    own = number is not None and s.games[number].group_size is not None
    return f"games[{number}].group_size" if own else "text_rollouts.group_size"


def play(s: RunConfig, f: Any) -> Found:
    """How many episodes of which game are played."""
    key, learners = "text_rollouts.episodes_per_iteration", s.num_learners
    total = s.text_rollouts.episodes_per_iteration
    for number, (game, size) in enumerate(zip(s.games, s.group_sizes, strict=True)):
        if game.episodes and game.episodes % size:
            yield Broken(f"games[{number}].episodes", f"{game.episodes} is not a multiple of group_size={size}")
        if not game.episodes and size != s.shared_size:
            say = f"{size} differs from {s.shared_size} of another game with a `weight`; set `episodes` of this one"
            yield Broken(f"games[{number}].group_size", say)
    exact = [game.episodes for game in s.games]
    named = sum(count or 0 for count in exact)
    if named and all(exact) and total != named:
        yield Broken(key, f"{total}, but `episodes` of games come to {named}; set {named}")
    if named and not all(exact) and total <= named:
        yield Broken(key, f"{total} leaves nothing to games with a `weight`; set more than {named}")
    if s.shared_episodes % s.shared_size:
        yield Broken(key, f"{s.shared_episodes} is not a multiple of group_size={s.shared_size}")
    if total < max(1, learners):
        yield Broken(key, "each learner needs at least one episode")
    alone = s.compares and _no_group(s)
    if alone:
        yield Broken(alone, f"{s.compares} compares the episodes of a group; set at least 2")
    if s.compares and s.groups < learners:
        say = f"{s.compares} needs a whole group for each of {learners} learners, and there are {s.groups}; set more"
        yield Broken(key, say)


def selection(s: RunConfig, f: Any) -> Found:
    """What is kept of what is played."""
    data, alone = s.data_selection, _no_group(s)
    for name, compares in (
        ("reward_variance_filter", data.reward_variance_filter < 1),
        ("zero_variance_groups", data.zero_variance_groups.type == "drop"),
        ("normalize_rewards", s.value("data_selection.normalize_rewards.type") == "group"),
    ):
        if compares and alone:
            say = f"compares the episodes of a group; set {alone} to at least 2"
            yield Broken(f"data_selection.{name}", say)
    kept = share_of_groups(data.reward_variance_filter, s.groups)
    least = groups_needed(s.num_learners, s.least_size, bool(s.compares))
    if data.reward_variance_filter < 1 and kept < least:
        each = f", {'one' if s.compares else 'an episode'} for each learner" if least > 1 else ""
        say = f"{data.reward_variance_filter:g} of {s.groups} groups leaves {kept}, but {least} must stay{each}"
        yield Broken("data_selection.reward_variance_filter", say)
    if data.overlong is not None and data.overlong.buffer >= data.overlong.tokens:
        say = f"must be less than tokens={data.overlong.tokens}, got {data.overlong.buffer}"
        yield Broken("data_selection.overlong.buffer", say)
    if data.oversample > 1:
        for say in _oversample(s):
            yield Broken("data_selection.oversample", say)


def _oversample(s: RunConfig) -> Iterator[str]:
    """What does not go with beginning more games than are needed."""
    runners, more = s.num_env_runners, s.data_selection.oversample
    spare = spare_groups(s.groups, more)
    if s.text_rollouts.deterministic is True:
        yield "contradicts text_rollouts.deterministic: who finishes first is no rule; leave one of them out"
    if s.league:
        yield "does not go with a `league`, whose pay-offs would hardly count the longest games; leave one of them out"
    if runners > s.groups:
        yield f"needs a group for each env runner; set num_env_runners to at most {s.groups}, got {runners}"
    if runners > spare:
        enough = math.ceil((1 + runners / s.groups) * 1e4 - 1e-6) / 1e4
        yield f"leaves {spare} spare groups, and each of {runners} env runners needs one; set at least {enough:g}"


def async_rollouts(s: RunConfig, f: Any) -> Found:
    """What does not go with playing ahead of the update."""
    key = "async_rollouts.max_staleness"
    if not s.async_rollouts.max_staleness:
        return
    if s.text_rollouts.deterministic is True:
        say = "contradicts text_rollouts.deterministic: when a reply is asked for decides on its weights; leave one out"
        yield Broken(key, say)
    if any(s.policy(name).training.importance_sampling is None for name in s.trained_policies()):
        yield Broken(key, "needs training.importance_sampling, which corrects for replies of older weights")
    if s.inference.sleep_during_update:
        yield Broken(key, "does not go with inference.sleep_during_update: engines that sleep play no games")
    if s.num_env_runners == 0 and not f.in_evaluation:
        yield Broken(key, "needs env runners of its own; set num_env_runners to at least 1")


def league(s: RunConfig, f: Any) -> Found:
    """A league and its policies."""
    own, learning = s.league, s.trained_policies()
    if own is None:
        return
    if s.policy_mapping_fn is not None and not is_league(s.policy_mapping_fn):
        yield Broken("policy_mapping_fn", "must be `league` beside a `league` section, or left out")
    if own.averaged_snapshots and not s.averages:
        yield Broken("league.averaged_snapshots", "needs averaged weights: set config.training.ema_decay")
    if own.self_play_share < 1 and own.opponent_engines < len(learning):
        yield Broken("league.opponent_engines", f"each policy needs one; set at least {len(learning)}")
    if own.max_members < len(learning):
        yield Broken("league.max_members", f"{own.max_members} do not suffice; set at least {len(learning)}")
    for policy in learning:
        if (parts := policy.rpartition("-"))[0] in learning and parts[2].isdecimal():
            yield Broken(f"policies.{policy}", f"is what a league calls a past version of {parts[0]}; rename it")
    first, *others = learning
    for policy in others:
        if _without_seed(s.model_of(policy)) != _without_seed(s.model_of(first)):
            say = f"differs from that of {first}, with which it shares the league's opponent engines; make them equal"
            yield Broken(f"policies.{policy}.language_model", say)


def _without_seed(options: Any) -> Any:
    """The options but for what tells two untrained tiny models apart."""
    return options.model_copy(update={"tiny": {key: value for key, value in options.tiny.items() if key != "seed"}})


def engines(s: RunConfig, f: Any) -> Found:
    """Engines, weights on their way to them, action values and adapters. Raises: ConfigError: no such engine."""
    gpus, engine = s.inference.num_gpus_per_engine, s.inference.engine
    if gpus != s.inference.split > 1 and not engine.outside:
        say = f"must equal tensor_parallel_size x pipeline_parallel_size={s.inference.split}, got {gpus:g}"
        yield Broken("inference.num_gpus_per_engine", say)
    yield from _generation(s, s.inference)
    away, key = s.training.offload_during_rollout, "training.offload_during_rollout"
    if away and not s.inference.sleep_during_update:
        yield Broken(key, "needs inference.sleep_during_update: engines that stay awake keep their part of a GPU")
    if away and not (s.num_learners and 0 < s.num_gpus_per_learner < 1):
        yield Broken(key, "needs num_learners of at least 1, and num_gpus_per_learner below 1 to share with engines")
    if engine.outside:
        yield from _server(s, engine)
    if s.inference.over_devices:
        yield from _over_devices(s, engine)
    yield from _action_values(s, engine)
    if s.inference.adapters:
        yield from _adapters(s, engine)


def _generation(s: RunConfig, own: Any) -> Found:
    """How vLLM computes replies."""
    pipeline = ["pipeline_parallel_size"] * own.over_nodes
    for key in ("quantization", "speculative", "batch_invariant", "async_scheduling", *pipeline):
        if getattr(own, key) and own.engine.type in ("transformers", "server"):
            yield Broken(f"inference.{key}", "needs engine: vllm")
    for key in ("speculative", "async_scheduling"):
        if getattr(own, key) and s.text_rollouts.constrained_decoding:
            say = "does not go with text_rollouts.constrained_decoding, where a token waits for the one before it"
            yield Broken(f"inference.{key}", say)
    if own.batch_invariant and not own.on_gpu:
        say = "needs engines on GPUs; on CPUs dtype: float32 with num_threads: 1 gives the same bits in any batch"
        yield Broken("inference.batch_invariant", say)
    sizes = "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization"
    for name in ("quantization", "async_scheduling", "speculative", *sizes):
        key = "speculative_config" if name == "speculative" else name
        if key in own.engine_kwargs:
            yield Broken("inference.engine_kwargs", f"has {key}, of which nothing else knows; set inference.{name}")


def _server(s: RunConfig, engine: Any) -> Found:
    """Raises: ConfigError: the address is none."""
    check_address(engine.url, "inference.engine.url")
    if s.text_rollouts.constrained_decoding:
        yield Broken("text_rollouts.constrained_decoding", "needs engine: vllm or transformers")
    if s.inference.num_engines > 1 or len(s.language_model_policies()) > 1 or s.league is not None:
        yield Broken("inference.engine", "a server is one engine, with the weights of one policy; take vllm")
    way = s.inference.weight_transport
    if way == "ipc" or (way == "object_store" and engine.weights_dir is None):
        say = "must be nccl with a server, or object_store with inference.engine.weights_dir"
        yield Broken("inference.weight_transport", say)


def _over_devices(s: RunConfig, engine: Any) -> Found:
    key, way = "inference.weight_transport", s.inference.weight_transport
    ours, theirs = s.inference.num_gpus_per_engine, s.num_gpus_per_learner
    got = f"got num_gpus_per_engine={ours:g} and num_gpus_per_learner={theirs:g}"
    if not ours and not engine.outside:
        yield Broken(key, f"{way!r} needs engines on GPUs; use object_store")
    if not theirs:
        say = f"is 0, but inference.weight_transport: {way} needs learners on GPUs; use object_store"
        yield Broken("num_gpus_per_learner", say)
    if not engine.over_devices:
        yield Broken(key, f"{way!r} needs engine: vllm; `{engine.type}` takes object_store")
    if way == "nccl" and (ours % 1 or theirs % 1):
        say = f"'nccl' needs whole GPUs for every engine and learner, {got}"
        yield Broken(key, f"{say}: NCCL does not connect two processes on one GPU; use object_store")
    if way == "ipc" and ours + theirs > 1:
        say = f"'ipc' needs learner and engine on one GPU, {got}, which must be at most 1 together; use object_store"
        yield Broken(key, say)
    engines, learners = s.inference.num_engines, max(1, s.num_learners)
    if way == "ipc" and engines > learners:
        say = f"must be at most num_learners={learners} with weight_transport: ipc, where each is on a learner's GPU"
        yield Broken("inference.num_engines", f"{say}; got {engines}")
    if way == "ipc" and learners > 1 and theirs <= 0.5:
        say = f"must be above 0.5 with inference.weight_transport: ipc, so that each has a GPU; got {theirs:g}"
        yield Broken("num_gpus_per_learner", say)


def _action_values(s: RunConfig, engine: Any) -> Found:
    values = s.action_values
    if values is None:
        return
    backbones = any(s.model_of(name).value_model == "separate" for name in s.trained_policies())
    if values.beta > 0 and not (engine.plays_value_backbone if backbones else engine.plays_values):
        say = f"`{engine.type}` cannot add action values{' of a backbone of their own' * backbones} to logits"
        instead = f"transformers{', value_model: shared' * backbones} or action_values.beta: 0"
        yield Broken("inference.engine", f"{say}; take {instead}")
    if values.beta > 0 and s.inference.over_devices:
        yield Broken("inference.weight_transport", "only object_store sends action values")
    if s.language_model.lora is not None:
        yield Broken("language_model.lora", f"{s.entry.name} trains whole weights; leave it out")
    if s.deepspeed is not None:
        yield Broken("deepspeed", f"{s.entry.name} keeps copies of its values that are not spread; leave it out")


def _adapters(s: RunConfig, engine: Any) -> Found:
    key, learning = "inference.adapters", s.trained_policies()
    if not engine.serves_adapters:
        yield Broken(key, f"needs engine: vllm; `{engine.type}` holds merged weights")
    if any(s.model_of(policy).lora is None for policy in learning):
        yield Broken(key, "needs language_model.lora for all policies that learn")
    if len({_base_of(s, policy) for policy in learning}) > 1:
        yield Broken(key, "needs the same model, tokenizer and context_length for all policies that learn")
    if s.inference.over_devices:
        yield Broken("inference.weight_transport", "must be object_store with inference.adapters")
    if s.inference.sleep_during_update:
        yield Broken("inference.sleep_during_update", "does not go with inference.adapters")
    if s.inference.over_nodes:
        yield Broken("inference.pipeline_parallel_size", "must be 1 with inference.adapters, files that one node has")


def _base_of(s: RunConfig, policy: str) -> str:
    options = s.model_of(policy)
    own = (options.model, sorted(options.tiny.items()), options.tokenizer, options.context_length)
    return repr((own, options.trust_remote_code))
