"""Token values, trained by offline RL and added to the policy's logits during play."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

PREFIX = "action_values."
"""What begins the names of these tensors among the weights that engines are sent."""
FILE = "action_values/values.safetensors"
"""Where they are in a Hugging Face directory; below it, since vLLM loads every safetensors file in it."""
BETA = "beta"
_BACKBONE = "backbone."


class Layers(nn.Module):
    """Linear, ReLU, Linear from hidden states ``[n, width]`` to float32 ``[n, outputs]``; begins at ``bias``."""

    def __init__(self, width: int, hidden: int, outputs: int, bias: float) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.outer = nn.Linear(hidden, outputs)
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):  # Small differences of values decide.
            out: torch.Tensor = self.outer(torch.relu(self.inner(hidden.to(self.inner.weight.dtype))))
        return out if out.dtype == torch.float64 else out.float()


class TokenValues(NamedTuple):
    """At ``A`` action tokens, with ``K`` heads, and at the ``B`` last states of episodes that were cut short.

    Attributes:
        q: float32 ``[K, A]``; of the token that was taken.
        q_logprobs: float32 ``[K, A]``; that token's log-probability if the values of all are logits.
        target_q: float32 ``[A]``; the least of the target heads, without gradient. Those of a lone head are its own.
        v, last_v: float32 ``[A]`` and ``[B]``; of the state it was taken in, and of the last ones. Empty without one.
    """

    q: torch.Tensor
    q_logprobs: torch.Tensor
    target_q: torch.Tensor
    v: torch.Tensor
    last_v: torch.Tensor


class ActionValues(nn.Module):
    """Heads ``Q(s, .)`` over the vocabulary and ``V(s)``, of ILQL (2206.11871) as LMRL-Gym (2311.18232) has them.

    ``targets`` follow the heads slowly (:meth:`follow`) and are never trained. ``beta`` is what the values count where
    the policy plays.
    """

    def __init__(
        self, width: int, hidden: int, vocabulary: int, *, heads: int, state: bool, targets: bool, q_init: float
    ) -> None:
        super().__init__()
        self.q = nn.ModuleList(Layers(width, hidden, vocabulary, q_init) for _ in range(heads))
        self.v = Layers(width, hidden, 1, 0.0) if state else None
        self.targets = copy.deepcopy(self.q).requires_grad_(False) if targets else None

    def forward(
        self, hidden: torch.Tensor, slow: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor, chunks: int
    ) -> TokenValues:
        """Values at hidden states ``[A, width]``, and at those of the slow backbone; ``last``: ``[B, width]``.

        ``tokens`` int64 ``[A]`` were taken. The values of all tokens are held of one of ``chunks`` at a time.
        """
        found = [_of_tokens(head, hidden, tokens, chunks) for head in self.q]
        q, logprobs = (torch.stack(each) for each in zip(*found, strict=True))
        with torch.no_grad():
            slow_heads = self.q if self.targets is None else self.targets
            target = torch.stack([_of_tokens(head, slow, tokens, chunks)[0] for head in slow_heads]).amin(0)
        none = hidden.new_zeros(0)
        v, last_v = (none, none) if self.v is None else (self.v(hidden).squeeze(-1), self.v(last).squeeze(-1))
        return TokenValues(q, logprobs, target, v, last_v)

    @torch.no_grad()
    def follow(self, rate: float, backbone: nn.Module | None = None, slow: nn.Module | None = None) -> None:
        """Move the targets, and ``slow`` to ``backbone``, by ``rate`` of the distance (Polyak)."""
        for fast, target in ((self.q, self.targets), (backbone, slow)):
            if fast is None or target is None:
                continue
            for new, old in zip(fast.parameters(), target.parameters(), strict=True):
                old.lerp_(new.to(old.dtype), rate)

    def for_engines(self, beta: float, backbone: nn.Module | None) -> dict[str, torch.Tensor]:
        """What an engine needs to play with these values, without targets and ``V``, which no choice depends on."""
        own = {f"q.{name}": tensor.detach() for name, tensor in self.q.state_dict().items()}
        trunk = {} if backbone is None else backbone.state_dict()
        own |= {f"{_BACKBONE}{name}": tensor.detach() for name, tensor in trunk.items()}
        return {PREFIX + name: tensor for name, tensor in own.items()} | {PREFIX + BETA: torch.tensor([float(beta)])}


class PlayedValues:
    """What an engine adds to logits: ``beta * min Q(s, .)``, which is ``beta (min Q - V)`` up to what all tokens share.

    Attributes:
        backbone: The values' own, whose states they are of; ``None``: the policy's.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        head: tuple[int, ...],
        device: torch.device,
        backbone: Callable[[], nn.Module] | None = None,
    ) -> None:
        """``head``: tokens and width of the policy's. ``backbone`` gives one like the policy's, whose weights are
        replaced; ``None``: the values have none.

        Raises: ValueError: tensors lack or do not fit the policy.
        """
        named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
        try:
            self.beta = float(named.pop(BETA))
            count = len({name.split(".")[1] for name in named if name.startswith("q.")})
            inner, outer = named["q.0.inner.weight"], named["q.0.outer.weight"]
            self._heads = nn.ModuleList(
                Layers(inner.shape[1], inner.shape[0], outer.shape[0], 0.0) for _ in range(count)
            )
            self._heads.load_state_dict({name[2:]: each for name, each in named.items() if name.startswith("q.")})
            trunk = {name.removeprefix(_BACKBONE): each for name, each in named.items() if name.startswith(_BACKBONE)}
            found = outer.shape[0], inner.shape[1]
            if found != head:
                raise ValueError(
                    f"they are for {found[0]} tokens and states of {found[1]} numbers, the model's head for {head[0]} "
                    f"and {head[1]}"
                )
            self.backbone = backbone() if trunk and backbone is not None else None
            if self.backbone is not None:
                self.backbone.load_state_dict(trunk)
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"the action values cannot be used: {error}") from error
        self.to(device)

    def to(self, device: torch.device | str) -> None:
        """Move them to a device."""
        for module in (self._heads, self.backbone):
            if module is not None:
                module.to(device)

    def added_to(self, logits: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of states ``[n, width]`` with what their values add, float32."""
        values = torch.stack([head(hidden) for head in self._heads]).amin(0)
        return logits.float() + self.beta * values[..., : logits.shape[-1]]  # Some heads have rows of no token.


def has_backbone(values: Mapping[str, Any]) -> bool:
    """Whether action values have a backbone of their own."""
    return any(name.startswith(PREFIX + _BACKBONE) for name in values)


def split_values(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of a policy, and those of its action values."""
    values = {name: each for name, each in state.items() if name.startswith(PREFIX)}
    return {name: each for name, each in state.items() if name not in values}, values


def save_values(tensors: Mapping[str, torch.Tensor], directory: Path) -> None:
    """Write what :meth:`ActionValues.for_engines` gives into a Hugging Face directory."""
    from safetensors.torch import save_file

    from rllib_lmgame.base.storage import follow_umask

    path = directory / FILE
    path.parent.mkdir(exist_ok=True)
    save_file({name: each.cpu().contiguous() for name, each in tensors.items()}, path)
    follow_umask(path)


def load_values(directory: str | Path) -> dict[str, torch.Tensor]:
    """What :func:`save_values` wrote; empty where there are none. Raises: ConfigError: the file is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from rllib_lmgame.base.errors import ConfigError

    path = Path(directory) / FILE
    if not os.path.lexists(path):
        return {}
    try:
        if not path.is_file():  # A pipe would be waited for; without its values a policy would play in silence.
            raise OSError("it is no file")
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError("language_model.model", f"{path} cannot be read ({error})") from error


def _of_tokens(
    head: Layers, hidden: torch.Tensor, tokens: torch.Tensor, chunks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value of each token and its log-probability among all, float32 ``[A]`` each."""
    if not len(tokens):
        return _chosen(head, hidden, tokens)
    recompute = chunks > 1 and torch.is_grad_enabled()
    parts = zip(hidden.tensor_split(chunks), tokens.tensor_split(chunks), strict=True)
    found = [
        checkpoint(_chosen, head, h, t, use_reentrant=False) if recompute else _chosen(head, h, t)
        for h, t in parts
        if len(t)
    ]
    value, logprob = zip(*found, strict=True)
    return torch.cat(value), torch.cat(logprob)


def _chosen(head: Layers, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = head(hidden)
    value = values.gather(1, tokens[:, None]).squeeze(1)
    return value, value - values.logsumexp(-1)
