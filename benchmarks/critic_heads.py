"""Value heads on the same hidden states: squared error, the same with PopArt's targets, and HL-Gauss, by held-out
explained variance at equal numbers of optimizer steps.

A model plays games as an example's file says, in this process; hidden states of its reply tokens and Monte-Carlo
returns are computed once, as in an update, and no gradient reaches the model. Each seed holds out a tenth of the
episodes of its own, and all heads of a seed begin from the same inner layer. HL-Gauss (Farebrother et al. 2024, arXiv
2403.03950) is the cross-entropy of a histogram with the return smoothed by a Gaussian. ``fit`` is the closed form of
a ``fit`` warm-up on the features of the inner layer as it begins.

    python benchmarks/critic_heads.py MODEL tuned_examples/quickstart-sokoban.yaml [--set KEY=VALUE] [--games 1024]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.evaluation.players.language_model import LocalModel, ModelOptions
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.experiments.checks.check import check_experiments, check_quickly
from rllib_lmgame.experiments.files.reading import read_experiments
from rllib_lmgame.learners.advantages import advantage_inputs
from rllib_lmgame.learners.critic.critic import SMALLEST_DEVIATION, is_held_out
from rllib_lmgame.learners.critic.regression import RegressionSums, fit, token_sums
from rllib_lmgame.learners.data.batching import TokenBatch
from rllib_lmgame.learners.engines.torch_engine import make_optimizer
from rllib_lmgame.learners.metrics import explained_variance
from rllib_lmgame.learners.microbatch import MOST_TOKENS
from rllib_lmgame.learners.process_group import ProcessGroup
from rllib_lmgame.policies.model.network import PolicyNetwork, ValueHead
from rllib_lmgame.rollouts.episodes import trajectory_of_seat
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes
from rllib_lmgame.rollouts.play import Sessions, play_many
from rllib_lmgame.rollouts.players import take_seats
from rllib_lmgame.rollouts.records import Trajectory
from rllib_lmgame.rollouts.seats import LanguageModelSeat

BINS = 51
SMOOTHING = 0.75
"""Deviation of the Gaussian, in bin widths."""
LEAST = 1e-4
"""Probability of a bin at the start."""
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
STEPS = (30, 100, 300, 1000)
"""Optimizer steps after which heads are compared."""
FIT = "fit"


# -- what is learned from -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tokens:
    """Reply tokens, in the order they were played.

    Attributes:
        hidden: float32 ``[A, width]``; state in which the token was chosen.
        returns: float32 ``[A]``; scaled as in training.
        offsets: int64 ``[N + 1]``; tokens of trajectory ``n`` are ``[offsets[n], offsets[n + 1])``.
        episodes: Id of each trajectory's episode.
    """

    hidden: torch.Tensor
    returns: torch.Tensor
    offsets: np.ndarray
    episodes: tuple[str, ...]

    def held_out(self, seed: int) -> np.ndarray:
        """bool ``[N]``; a tenth of the trajectories, another one for every seed."""
        return np.array([is_held_out(f"{seed}/{episode}") for episode in self.episodes])

    def of(self, trajectories: np.ndarray) -> torch.Tensor:
        """int64; the tokens of some trajectories."""
        bounds = self.offsets
        return torch.from_numpy(np.concatenate([np.arange(bounds[n], bounds[n + 1]) for n in trajectories]))


async def play(model: str, config: Any, games: int) -> list[Trajectory]:
    """Trajectories of a model that plays a game for one, by Transformers.

    Raises:
        ValueError: if the game is for several, or a game could not be played.
    """
    (game,) = config.training_games()
    with closing(make_session(game.env, dict(game.env_config))) as session:
        seats = session.agent_ids
    if len(seats) != 1:
        raise ValueError(f"{game.env} is a game for {len(seats)}")
    options = ModelOptions(config.run.language_model, config.run.inference, config.run.text_rollouts)
    at_once = config.num_envs_per_env_runner
    settings = PlayerSettings(at_once=at_once)
    with closing(Sessions()) as sessions:
        async with LocalModel("model", model, model, options, settings) as player:
            assignments = dict.fromkeys(seats, player.assignment)
            plans = [
                EpisodePlan(plan.episode_id, plan.game, plan.seed, plan.group, plan.index, assignments=assignments)
                for plan in plan_episodes(games, run_seed=0, purpose="train", iteration=0)
            ]
            played = await play_many(
                plans,
                [game],
                lambda session, plan: take_seats(session, plan, lambda _: player),
                sessions,
                options.text_rollouts,
                at_once,
            )
    if played.failures:
        raise ValueError(f"{len(played.failures)} games failed, the first: {played.failures[0].message}")
    sat = [(one, seat) for one in played.episodes for seat in one.seats.values()]
    return [trajectory_of_seat(one, seat) for one, seat in sat if isinstance(seat, LanguageModelSeat)]


class Bare(torch.nn.Module):
    """Stands in a value head's place: the features that it reads are the hidden states."""

    def with_features(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden[:, 0].float(), hidden.float()


@torch.no_grad()
def tokens_of(model: str, config: Any, trajectories: Sequence[Trajectory]) -> Tokens:
    """Hidden states and Monte-Carlo returns, as an update has them."""
    options, ppo = config.run.language_model, config.run.token_ppo
    module = PolicyNetwork(options, model)
    module.value_head = Bare()
    batch = TokenBatch.from_trajectories(
        trajectories, max_row_tokens=options.context_length, reward_scale=config.run.text_rollouts.reward_scale
    )
    hidden = torch.empty(batch.num_actions, module.language_model.get_output_embeddings().in_features)
    for pack in batch.microbatches(ppo.microbatch or MOST_TOKENS):
        out = module(pack.to_torch() | {"with_logprobs": False, "with_value_features": True})
        hidden[torch.from_numpy(pack.token_slot)] = out["value_features"]
    inputs = advantage_inputs(batch, gamma=config.gamma, lam=config.lambda_, ranks=ProcessGroup())
    returns = ppo.advantage_estimator.value_targets(inputs, monte_carlo=True)
    return Tokens(hidden, torch.from_numpy(returns), inputs.offsets, inputs.episodes)


# -- heads ----------------------------------------------------------------------------------------------------------


class Target(Protocol):
    """What a head is trained on, made from the returns ``[A]`` of the training part.

    Attributes:
        start: ``[outputs]``; what the head gives before the first step.
    """

    start: torch.Tensor

    def targets(self, returns: torch.Tensor) -> torch.Tensor:
        """``[A]`` or ``[A, outputs]``."""

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean over tokens."""

    def values(self, output: torch.Tensor) -> torch.Tensor:
        """Rewards ``[A]``."""


class SquaredError:
    """The plain value loss."""

    start = torch.zeros(1)

    def __init__(self, returns: torch.Tensor) -> None:
        self.shift, self.scale = 0.0, 1.0

    def targets(self, returns: torch.Tensor) -> torch.Tensor:
        return (returns - self.shift) / self.scale

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(output, targets)

    def values(self, output: torch.Tensor) -> torch.Tensor:
        return self.shift + self.scale * output


class PopArt(SquaredError):
    """On returns in units of their own, which stay: the training part is one batch."""

    def __init__(self, returns: torch.Tensor) -> None:
        self.shift, self.scale = float(returns.mean()), max(float(returns.std(correction=0)), SMALLEST_DEVIATION)


class HLGauss:
    """Cross-entropy with a smoothed histogram between the least and the greatest return; the value is its mean. It
    begins at that of all returns, as PopArt does at their mean.
    """

    def __init__(self, returns: torch.Tensor) -> None:
        self.edges = torch.linspace(float(returns.min()), float(returns.max()), BINS + 1)
        self.centres = (self.edges[:-1] + self.edges[1:]) / 2
        self.deviation = SMOOTHING * float(self.edges[1] - self.edges[0])
        self.start = self.targets(returns).mean(0).clamp(min=LEAST).log()

    def targets(self, returns: torch.Tensor) -> torch.Tensor:
        return smoothed(returns, self.edges, self.deviation)

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output, targets)

    def values(self, output: torch.Tensor) -> torch.Tensor:
        return output.softmax(-1) @ self.centres


HEADS: Mapping[str, Callable[[torch.Tensor], Target]] = {
    "squared error": SquaredError,
    "PopArt": PopArt,
    "HL-Gauss": HLGauss,
}


def smoothed(returns: torch.Tensor, edges: torch.Tensor, deviation: float) -> torch.Tensor:
    """float32 ``[A, bins]``: probability of each bin under a Gaussian around the return, cut off at the outer edges.

    Args:
        returns: ``[A]``, between the outer edges.
        edges: ``[bins + 1]``, rising.
        deviation: Of the Gaussian.
    """
    below = torch.special.ndtr((edges - returns[:, None]) / deviation)
    return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


def new_head(width: int, start: torch.Tensor, seed: int) -> ValueHead:
    """The project's head with as many outputs as ``start`` has; the inner layer depends on the seed alone."""
    torch.manual_seed(seed)
    head = ValueHead(width, width)
    head.outer = torch.nn.Linear(width, len(start))
    torch.nn.init.zeros_(head.outer.weight)
    head.outer.bias.data.copy_(start)
    return head


# -- measuring ------------------------------------------------------------------------------------------------------


def learn(tokens: Tokens, make: Callable[[torch.Tensor], Target], rate: float, seed: int, config: Any) -> list[float]:
    """Held-out explained variance after each of :data:`STEPS`. As in training, a minibatch has so many episodes and the
    loss its coefficient, which counts where the gradient is clipped.
    """
    held_out = tokens.held_out(seed)
    fitted, tested = np.flatnonzero(~held_out), tokens.of(np.flatnonzero(held_out))
    target = make(tokens.returns[tokens.of(fitted)])
    targets = target.targets(tokens.returns)
    head = new_head(tokens.hidden.shape[1], target.start, seed)
    ppo = config.run.token_ppo
    optimizer = make_optimizer(head, ppo, max_grad_norm=config.grad_clip, lr=rate)
    size = config.run.text_rollouts.episodes_per_iteration // ppo.num_minibatches
    rng, order, found = np.random.default_rng(seed), np.zeros(0, np.int64), []
    for step in range(1, max(STEPS) + 1):
        if len(order) < size:
            order = rng.permutation(fitted)
        chosen, order = tokens.of(order[:size]), order[size:]
        optimizer.zero_grad()
        (config.vf_loss_coeff * target.loss(head(tokens.hidden[chosen]), targets[chosen])).backward()
        optimizer.step()
        if step in STEPS:
            with torch.no_grad():
                values = target.values(head(tokens.hidden[tested]))
            found.append(explained_variance(values.numpy(), tokens.returns[tested].numpy(), ProcessGroup()))
    return found


@torch.no_grad()
def closed_form(tokens: Tokens, seed: int) -> float:
    """Held-out explained variance of the fit of the last layer."""
    _, features = new_head(tokens.hidden.shape[1], torch.zeros(1), seed).with_features(tokens.hidden)
    held_out = torch.from_numpy(np.repeat(tokens.held_out(seed), np.diff(tokens.offsets)))
    game = torch.zeros(len(features), dtype=torch.int64)

    def sums(chosen: torch.Tensor) -> RegressionSums:
        gram, vectors = token_sums(features, tokens.returns, game, chosen, 1)
        return RegressionSums(gram.numpy(), {"": vectors[0].numpy()})

    return fit(sums(~held_out), sums(held_out), {"": (0.0, 1.0)}).held_out_explained_variance


Results = Mapping[tuple[str, float], Sequence[Sequence[float]]]
"""Head and rate -> per seed, the explained variance after each of :data:`STEPS`."""


def best_rate(results: Results, head: str, column: int) -> float:
    """The rate with the greatest mean over seeds after so many steps."""
    return max((rate for name, rate in results if name == head), key=lambda rate: _mean(results[head, rate], column))


def table(results: Results, closed: Sequence[float]) -> str:
    """Markdown: every head at the best of its rates for each number of steps; what HL-Gauss gains over the better of
    the others, with the least and the greatest of the seeds.
    """
    lines = [f"| head | {' | '.join(f'{steps} steps' for steps in STEPS)} |", "|---" * (len(STEPS) + 1) + "|"]
    columns = range(len(STEPS))
    for head in HEADS:
        rates = [best_rate(results, head, column) for column in columns]
        cells = [f"{_mean(results[head, rate], c):.3f} ({rate:g})" for c, rate in zip(columns, rates, strict=True)]
        lines.append(f"| {head} | {' | '.join(cells)} |")
    cells = []
    for c in columns:
        *others, own = (results[head, best_rate(results, head, c)] for head in HEADS)
        other = max(others, key=lambda seeds: _mean(seeds, c))
        gains = [a[c] - b[c] for a, b in zip(own, other, strict=True)]
        cells.append(f"{fmean(gains):+.3f} ({min(gains):+.3f} to {max(gains):+.3f})")
    lines.append(f"| HL-Gauss less the better of the others | {' | '.join(cells)} |")
    lines.append(f"| `{FIT}`, no steps | {' | '.join([f'{fmean(closed):.3f}'] * len(STEPS))} |")
    return "\n".join(lines)


def all_rates(results: Results) -> str:
    """Markdown: every head and rate."""
    lines = [f"| head, rate | {' | '.join(f'{steps} steps' for steps in STEPS)} |", "|---" * (len(STEPS) + 1) + "|"]
    for (head, rate), seeds in results.items():
        cells = " | ".join(f"{_mean(seeds, column):.3f}" for column in range(len(STEPS)))
        lines.append(f"| {head}, {rate:g} | {cells} |")
    return "\n".join(lines)


def _mean(seeds: Sequence[Sequence[float]], column: int) -> float:
    return fmean(values[column] for values in seeds)


def read_config(file: str, overrides: Sequence[str]) -> Any:
    """The configuration of the one experiment of a file."""
    specs = read_experiments(file, overrides)
    check_quickly(specs)
    (experiment,) = check_experiments(specs)
    return experiment.configs[0]


def main() -> None:
    """Play, learn, print."""
    from machine import describe, machine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face directory")
    parser.add_argument("file", help="experiment whose game and settings are taken")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the file")
    parser.add_argument("--games", type=int, default=1024)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    before = machine()
    torch.set_num_threads(1)
    config = read_config(arguments.file, arguments.set)
    trajectories = asyncio.run(play(arguments.model, config, arguments.games))
    tokens = tokens_of(arguments.model, config, trajectories)
    results = {
        (head, rate): [learn(tokens, make, rate, seed, config) for seed in arguments.seeds]
        for head, make in HEADS.items()
        for rate in RATES
    }
    closed = [closed_form(tokens, seed) for seed in arguments.seeds]
    returns = tokens.returns
    played = (
        f"{arguments.games} games, {len(returns)} reply tokens, {tokens.hidden.shape[1]} features; returns "
        f"{returns.mean():.2f} on average, {returns.std():.2f} deviation, {returns.min():.2f} to {returns.max():.2f}."
    )
    print(describe(before), played, all_rates(results), table(results, closed), sep="\n\n")


if __name__ == "__main__":
    main()
