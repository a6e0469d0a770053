"""``benchmarks/critic_heads.py``: the histogram against numerical integration, what is played and learned from, and the
table.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import critic_heads
import numpy as np
import pytest
import torch

from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.settings.sections.token_ppo import TokenPPOOptions

QUICKSTART = Path(__file__).parents[2] / "tuned_examples" / "quickstart-sokoban.yaml"


@pytest.mark.parametrize("deviation", [0.1, 0.75, 4.0])
def test_histogram_is_the_integral_of_the_density(deviation: float) -> None:
    """Over a fine grid, cut off at the outer edges; returns on an edge, in a bin and at both ends."""
    edges = np.linspace(-3.0, 4.0, 8)
    returns = np.array([-3.0, -2.5, 0.0, 1.3, 4.0])
    fine = np.linspace(-3.0, 4.0, 70_001)
    middle = (fine[:-1] + fine[1:]) / 2
    density = np.exp(-0.5 * ((middle - returns[:, None]) / deviation) ** 2)
    mass = density.reshape(5, 7, 10_000).sum(2)
    expected = mass / mass.sum(1, keepdims=True)
    got = critic_heads.smoothed(torch.tensor(returns), torch.tensor(edges), deviation)
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_a_histogram_in_the_middle_has_its_return_as_mean() -> None:
    returns = torch.tensor([-30.0, 10.0, -12.3, 1.7])
    head = critic_heads.HLGauss(returns)
    values = head.values(head.targets(returns).log())
    torch.testing.assert_close(values[2:], returns[2:], atol=0.01, rtol=0.0)
    assert (values[:2] - returns[:2]).abs().max() < 0.75 * 40 / critic_heads.BINS, "what the cut takes at the ends"


def test_heads_of_a_seed_differ_in_their_last_layer_alone() -> None:
    """Squared error and PopArt begin at 0 and at the mean, HL-Gauss at the histogram of the returns."""
    tokens = made_up_tokens()
    made = {name: make(tokens.returns) for name, make in critic_heads.HEADS.items()}
    heads = {name: critic_heads.new_head(8, target.start, 1) for name, target in made.items()}
    assert all(torch.equal(head.inner.weight, heads["PopArt"].inner.weight) for head in heads.values())
    with torch.no_grad():
        values = {name: target.values(heads[name](tokens.hidden)) for name, target in made.items()}
    expected = torch.full((1000,), float(tokens.returns.mean()))
    torch.testing.assert_close(values["squared error"], torch.zeros(1000))
    torch.testing.assert_close(values["PopArt"], expected)
    torch.testing.assert_close(values["HL-Gauss"], expected, atol=0.01, rtol=0.0)


def config(episodes: int = 32) -> SimpleNamespace:
    """What :func:`critic_heads.learn` reads."""
    return SimpleNamespace(
        token_ppo_options=TokenPPOOptions(num_minibatches=4),
        grad_clip=1.0,
        vf_loss_coeff=0.2,
        text_rollout_options=SimpleNamespace(episodes_per_iteration=episodes),
    )


def made_up_tokens() -> critic_heads.Tokens:
    """200 episodes of five tokens, whose returns follow from the hidden states."""
    hidden = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    returns = torch.tanh(hidden[:, 0]) - 0.3 * hidden[:, 1]
    return critic_heads.Tokens(hidden, returns, np.arange(0, 1001, 5), tuple(map(str, range(200))))


@pytest.mark.parametrize("head", critic_heads.HEADS)
def test_every_head_learns_what_can_be_learned(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic_heads, "STEPS", (1, 200))
    before, after = critic_heads.learn(made_up_tokens(), critic_heads.HEADS[head], 1e-2, 0, config())
    assert before < 0.3 and after > 0.9


def test_every_seed_holds_out_a_tenth_of_its_own() -> None:
    tokens = made_up_tokens()
    one, other = tokens.held_out(0), tokens.held_out(1)
    assert 8 < one.sum() < 35 and 8 < other.sum() < 35 and (one != other).any()


def test_closed_form_is_least_squares_on_the_features() -> None:
    """There are many more tokens than features, so that the best penalty is about none."""
    tokens = made_up_tokens()
    with torch.no_grad():
        features = critic_heads.new_head(8, torch.zeros(1), 0).with_features(tokens.hidden)[1].double().numpy()
    columns, returns = np.column_stack([features, np.ones(1000)]), tokens.returns.double().numpy()
    held_out = np.repeat(tokens.held_out(0), 5)
    weights = np.linalg.lstsq(columns[~held_out], returns[~held_out], rcond=None)[0]
    error = returns[held_out] - columns[held_out] @ weights
    expected = 1.0 - error.var() / returns[held_out].var()
    assert critic_heads.closed_form(tokens, 0) == pytest.approx(expected, abs=0.01)


def test_tokens_are_those_of_the_games(tmp_path: Path) -> None:
    model = str(build_tiny_model(tmp_path, ["Up", "Down", "Left", "Right"]))
    settings = {"config.text_rollouts.reward_scale": 0.5, "config.text_rollouts.format_penalty": -1.0}
    options = critic_heads.read_config(str(QUICKSTART), [f"{key}={json.dumps(v)}" for key, v in settings.items()])
    trajectories = asyncio.run(critic_heads.play(model, options, 3))
    tokens = critic_heads.tokens_of(model, options, trajectories)
    counts = [sum(len(turn.response_ids) for turn in one.turns) for one in trajectories]
    assert np.diff(tokens.offsets).tolist() == counts and tokens.hidden.shape[0] == sum(counts)
    first = tokens.returns.numpy()[tokens.offsets[:-1]]
    np.testing.assert_allclose(first, [0.5 * sum(turn.reward for turn in one.turns) for one in trajectories], rtol=1e-5)
    assert bool(tokens.hidden.isfinite().all()) and tokens.hidden.std() > 0


def test_table_takes_the_best_rate_of_each_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic_heads, "STEPS", (1, 9))
    results = {
        ("squared error", 0.1): [[0.1, 0.2], [0.3, 0.2]],
        ("squared error", 0.01): [[0.0, 0.3], [0.2, 0.3]],
        ("PopArt", 0.1): [[0.1, 0.5], [0.1, 0.3]],
        ("HL-Gauss", 0.1): [[0.4, 0.3], [0.2, 0.3]],
    }
    lines = critic_heads.table(results, [0.1, 0.2]).splitlines()
    assert lines[2:] == [
        "| squared error | 0.200 (0.1) | 0.300 (0.01) |",
        "| PopArt | 0.100 (0.1) | 0.400 (0.1) |",
        "| HL-Gauss | 0.300 (0.1) | 0.300 (0.1) |",
        "| HL-Gauss less the better of the others | +0.100 (-0.100 to +0.300) | -0.100 (-0.200 to +0.000) |",
        "| `fit`, no steps | 0.150 | 0.150 |",
    ]
    assert critic_heads.all_rates(results).splitlines()[3] == "| squared error, 0.01 | 0.100 | 0.300 |"
