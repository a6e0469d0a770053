"""Reinforcement learning of a language model in one file: play games, compare them, take a step, push the weights.

    python examples/one_iteration.py

A tiny language model with random weights learns to cross a frozen lake, in two minutes on two CPU cores. This is the
loop that ``rllib train`` runs, written with the parts of the package as a library: no Ray, no RLlib, no YAML. Read it
from `train` on; the names lead to the modules where each part is explained.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
import torch

from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.inference.engines.transformers_engine import TransformersEngine
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.learners.advantages import advantage_inputs
from rllib_lmgame.learners.advantages.without_critic import GRPO
from rllib_lmgame.learners.data.batching import PackedBatch, TokenBatch
from rllib_lmgame.learners.losses.policy import Clip, PolicyTerms
from rllib_lmgame.learners.process import ProcessGroup
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.model.network import PolicyNetwork
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.episodes import trajectory_of_seat
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import PlayedEpisode, Sessions, play_many
from rllib_lmgame.rollouts.players import LanguageModel, take_seats
from rllib_lmgame.rollouts.records import GameConfig, Trajectory
from rllib_lmgame.rollouts.seats import EngineReplies, LanguageModelSeat


@dataclass(frozen=True)
class Config:
    """What can be changed.

    Attributes:
        levels: Different lakes in an iteration.
        group_size: Games on each of them; GRPO compares their returns.
        microbatch_tokens: Tokens of one forward and backward pass.
        minibatches: Optimizer steps in an iteration.
        clip_low, clip_high: The ratio of new to old probabilities is clipped at ``1 - clip_low`` and ``1 + clip_high``.
    """

    iterations: int = 60
    levels: int = 16
    group_size: int = 8
    lr: float = 2e-3
    microbatch_tokens: int = 4096
    minibatches: int = 2
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_grad_norm: float = 1.0
    seed: int = 0


GAME = GameConfig(
    env="lmgame/FrozenLake-v0",
    env_config={"split": "train", "size": 3, "max_turns": 6, "max_actions_per_turn": 1, "show_rules": False},
)
"""A lake of 3 by 3 cells, and one move in each reply. Any game for one or more players can stand here."""

TALK = LanguageModelOptions(
    system_prompt="",
    format_instructions=False,
    turn_suffix="{turns_left}",
    reply_prefill="<answer>",
    history="window",
    max_tokens_per_turn=8,
    context_length=96,
)
"""How the game is put to the model, and how long its replies may be."""

ROLLOUTS = TextRolloutOptions()


async def train(config: Config) -> list[float]:
    """Train a new model; returns the share of games that were won, by iteration."""
    torch.manual_seed(config.seed)
    with tempfile.TemporaryDirectory() as directory:
        make_model(directory)
        chat = ChatFormat(load_tokenizer(directory, TALK), TALK)
        engine = TransformersEngine(
            directory, InferenceOptions(engine="transformers"), context_length=TALK.context_length, seed=config.seed
        )
        await engine.start()
        model = PolicyNetwork(TALK, directory, critic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.0)
    rng, sessions, success = np.random.default_rng(config.seed), Sessions(), []
    try:
        for iteration in range(config.iterations):
            started = time.perf_counter()
            episodes = await play(plan(config, iteration), engine, chat, sessions)
            played = time.perf_counter()
            figures = update(model, optimizer, trajectories_of(episodes), config, rng)
            await push(model, engine, version=iteration + 1)
            success.append(fmean(won(episode) for episode in episodes))
            tell(iteration, success, figures, played - started, time.perf_counter() - played)
    finally:
        sessions.close()
        await engine.shutdown()
    return success


def make_model(directory: str) -> None:
    """Write a tiny model with random weights, whose tokenizer knows the words of the game, as a Hugging Face directory.

    With the directory of a pretrained model, or its id on the hub, the rest stays as it is.
    """
    session = make_session(GAME.env, GAME.env_config)
    shape = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 192}
    build_tiny_model(directory, game_corpus(session), shape)
    session.close()


# 1. Play. A plan says which level is played by whom; a seat turns what the game shows into token ids, and keeps the ids
#    that the engine replies with, their log-probabilities and their reward as a `Turn`. Games wait for nobody.


def plan(config: Config, iteration: int) -> list[EpisodePlan]:
    """``levels`` groups of ``group_size`` games on one level each."""
    return plan_episodes(
        config.levels * config.group_size,
        run_seed=config.seed,
        purpose="train",
        iteration=iteration,
        group_size=config.group_size,
    )


async def play(
    plans: Sequence[EpisodePlan], engine: TransformersEngine, chat: ChatFormat, sessions: Sessions
) -> list[PlayedEpisode]:
    """Play all games at once. The engine may only reply with legal moves, which a random model would hardly find."""
    replies = EngineReplies(engine.generate, constrained_decoding=True, seeded=True)
    player = LanguageModel("player", None, chat, lambda plan, seed: replies, ROLLOUTS)
    seats = partial(take_seats, player_of=lambda assignment: player)
    plans = [replace(plan, assignments={"player": player.assignment}) for plan in plans]
    played = await play_many(plans, [GAME], seats, sessions, ROLLOUTS, at_once=len(plans))
    for failure in played.failures:  # A failed game is never trained on.
        print(f"{failure.plan.episode_id}: {failure.message}")
    return played.episodes


def trajectories_of(episodes: Sequence[PlayedEpisode]) -> list[Trajectory]:
    """What each player saw, replied and earned, as token ids."""
    return [
        trajectory_of_seat(episode, seat)
        for episode in episodes
        for seat in episode.seats.values()
        if isinstance(seat, LanguageModelSeat) and seat.turns
    ]


def won(episode: PlayedEpisode) -> bool:
    return all(bool(info.get("success")) for info in episode.infos.values())


# 2. Learn. Trajectories are laid end to end as rows of tokens. Only the model's own tokens are trained on, and of these
#    only where it had a choice.


def update(
    model: PolicyNetwork,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    config: Config,
    rng: np.random.Generator,
) -> dict[str, float]:
    """One pass over all tokens, in ``minibatches`` steps; returns figures, as means over tokens."""
    batch = TokenBatch.from_trajectories(trajectories, max_row_tokens=TALK.context_length)
    with torch.no_grad():  # What the policy gave each token before the first step.
        for pack in batch.microbatches(config.microbatch_tokens, repeat_cost=0.0):
            batch.put(pack, old_logprobs=model(pack.to_torch())["logprobs"].numpy())
    batch.advantages = GRPO()(advantage_inputs(batch, gamma=1.0, lam=1.0, ranks=ProcessGroup()))
    sums: dict[str, float] = {}
    minibatches = batch.minibatches(config.minibatches, rng, config.microbatch_tokens, repeat_cost=0.0)
    for packs in minibatches:
        tokens = batch.size_of(packs).tokens
        optimizer.zero_grad()
        for pack in packs:
            loss, numbers = loss_of(model, batch, pack, config)
            (loss / tokens).backward()
            for name, value in numbers.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
    gap = np.abs(batch.old_logprobs - batch.rollout_logprobs).max()  # The engine and the learner must agree.
    return {name: value / batch.num_actions for name, value in sums.items()} | {"logprob_diff": float(gap)}


def loss_of(
    model: PolicyNetwork, batch: TokenBatch, pack: PackedBatch, config: Config
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """PPO's clipped loss, summed over the tokens of one micro-batch, and sums for the figures."""

    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(getattr(batch, name)[pack.token_slot])

    out = model(pack.to_torch())
    loss, sums = Clip(clip_low=config.clip_low, clip_high=config.clip_high)(
        PolicyTerms(
            logprobs=out["logprobs"],
            old_logprobs=column("old_logprobs"),
            rollout_logprobs=column("rollout_logprobs"),
            advantages=column("advantages"),
            sequence=column("trajectory").long(),
        )
    )
    return loss.sum(), sums | {"entropy": out["entropy"].sum()}


# 3. Push. The engine finishes what it has begun, loads the weights and forgets what it has cached.


async def push(model: PolicyNetwork, engine: TransformersEngine, version: int) -> None:
    await engine.update_weights(dict(model.as_checkpoint(model.hf_state())), version)


def tell(iteration: int, success: Sequence[float], figures: dict[str, float], play_s: float, update_s: float) -> None:
    shown = "  ".join(f"{name} {value:.3g}" for name, value in figures.items() if name != "dual_clip_fraction")
    print(
        f"{iteration:3d}  success {success[-1]:.2f}  {shown}  play_s {play_s:.1f}  update_s {update_s:.1f}", flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A tiny language model learns to cross a frozen lake.")
    parser.add_argument("--iterations", type=int, default=Config.iterations)
    parser.add_argument("--seed", type=int, default=Config.seed)
    asyncio.run(train(Config(**vars(parser.parse_args()))))
