"""What stands on a model's hidden states: log-probabilities and entropies of tokens, values of states and of tokens.

The logits of all positions are never held together. With 150,000 tokens they are the largest tensor of an update, and
PyTorch's operations hold six or seven of that size at once. Here there are those of a chunk of positions, whose place
the gradient takes, and one block of rows.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.storage import follow_umask

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Allowed:
    """Positions (int64 ``[C]``, rising) whose token was chosen among a few ids, and these, end to end (int64 ``[S]``).

    ``owner`` int64 ``[S]``: place in ``positions``, never falling.
    """

    positions: Tensor
    owner: Tensor
    ids: Tensor

    def split(self, sizes: Sequence[int]) -> list[Allowed | None]:
        """The parts of consecutive stretches of positions, counted from each one's start; ``None`` where none are."""
        ends = torch.tensor([0, *sizes], device=self.positions.device).cumsum(0)
        cuts = torch.searchsorted(self.positions, ends)
        id_cuts = torch.searchsorted(self.owner, cuts)
        stretches = zip(pairwise(cuts.tolist()), pairwise(id_cuts.tolist()), ends.tolist(), strict=False)
        return [
            Allowed(self.positions[a:b] - start, self.owner[i:j] - a, self.ids[i:j]) if b > a else None
            for (a, b), (i, j), start in stretches
        ]


def num_chunks(positions: int, head_chunk_tokens: int) -> int:
    """Chunks that keep the logits of at most ``head_chunk_tokens`` positions at once; at least one."""
    return max(1, -(-positions // head_chunk_tokens))


def token_logprobs(
    head: Head,
    hidden: Tensor,
    target_ids: Tensor,
    *,
    chunks: int = 1,
    temperature: float | Tensor = 1.0,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
    allowed: Allowed | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and the entropy of what it was drawn from: float32 ``[positions]`` each.

    Args:
        head: Maps hidden states ``[n, width]`` to logits ``[n, vocabulary]``. It is called exactly ``chunks`` times,
            whatever the positions: under partitioned weights every call is a collective.
        hidden: ``[positions, width]``; at least one.
        target_ids: int64 ``[positions]``.
        chunks: Calls of ``head``. With several, each chunk's logits are recomputed in the backward pass.
        temperature: Sampling temperature the logits are divided by, or that of each position ``[positions]``.
        with_entropy, entropy_gradient: Whether the entropy is computed (else ``None``), and differentiated.
        allowed: Positions at which only some ids could be drawn: both numbers are those among them.
    """
    positions = target_ids.shape[0]
    temperatures: Any = [temperature] * chunks
    if isinstance(temperature, Tensor):
        temperatures = _filled(temperature[:, None], chunks).tensor_split(chunks)
    hidden, target_ids = _filled(hidden, chunks), _filled(target_ids, chunks)
    recompute = chunks > 1 and torch.is_grad_enabled() and hidden.requires_grad
    targets = target_ids.tensor_split(chunks)
    parts = [None] * chunks if allowed is None else allowed.split([len(t) for t in targets])
    logprobs, entropies = [], []
    for h, t, part, each in zip(hidden.tensor_split(chunks), targets, parts, temperatures, strict=True):
        arguments = (head, h, t, each, with_entropy, entropy_gradient, part)
        logprob, entropy = checkpoint(_chunk, *arguments, use_reentrant=False) if recompute else _chunk(*arguments)
        logprobs.append(logprob)
        entropies.append(entropy)
    joined = torch.cat(logprobs)[:positions] if len(logprobs) > 1 or positions < chunks else logprobs[0]
    if not with_entropy:
        return joined, None
    return joined, torch.cat(entropies)[:positions]


def _filled(x: Tensor, size: int) -> Tensor:
    return x if len(x) >= size else torch.cat([x, x[:1].expand(size - len(x), *x.shape[1:])])


def _chunk(
    head: Head,
    hidden: Tensor,
    target_ids: Tensor,
    temperature: float | Tensor,
    with_entropy: bool,
    entropy_gradient: bool,
    allowed: Allowed | None,
) -> tuple[Tensor, Tensor | None]:
    logits = head(hidden).float()
    if isinstance(temperature, Tensor) or temperature != 1.0:
        logits = logits.div_(temperature)
    if allowed is None:
        return chosen_and_entropy(logits, target_ids, with_entropy, entropy_gradient)
    chosen, entropy = _among_few(logits, target_ids, allowed, with_entropy, entropy_gradient)
    if len(allowed.positions) == len(target_ids):
        return chosen, entropy
    rest, rest_entropy = chosen_and_entropy(logits, target_ids, with_entropy, entropy_gradient)
    if rest_entropy is not None and entropy is not None:
        rest_entropy = rest_entropy.index_copy(0, allowed.positions, entropy)
    return rest.index_copy(0, allowed.positions, chosen), rest_entropy


def _among_few(
    logits: Tensor, target_ids: Tensor, allowed: Allowed, with_entropy: bool, entropy_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities and entropies ``[C]`` at the constrained positions, each among its own ids."""
    positions, owner = allowed.positions, allowed.owner
    of_ids = logits[positions[owner], allowed.ids]
    highest = of_ids.new_full(positions.shape, -torch.inf).scatter_reduce(0, owner, of_ids.detach(), "amax")
    total = torch.zeros_like(highest).index_add(0, owner, (of_ids - highest[owner]).exp())
    norm = highest + total.log()
    chosen = logits[positions, target_ids[positions]] - norm
    if not with_entropy:
        return chosen, None
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        logprobs = of_ids - norm[owner]
        return chosen, -torch.zeros_like(norm).index_add(0, owner, logprobs.exp() * logprobs)


CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
FACTORS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
TOKENS = "unpadded_vocab_size"
"""Fields of configurations that say what a family does to its head's output."""


def logit_transform(config: Any) -> Callable[[Tensor], Tensor]:
    """What some families do to their head's output: a factor (Cohere, Falcon-H1), a divisor (Granite, Inkling), which
    is a factor in HyperCLOVA X, soft capping (Gemma, xLSTM). Inkling's head has rows of no token, which are left out.
    """
    config = config.get_text_config(decoder=True)

    def said(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None)) is not None), None)

    factor, divisor, cap, tokens = said(*FACTORS), said(*DIVISORS), said(*CAPS), said(TOKENS)
    if config.model_type == "hyperclovax":
        factor, divisor = divisor, None

    def transform(logits: Tensor) -> Tensor:
        if tokens is not None:
            logits = logits[..., : int(tokens)]
        if factor is not None:
            logits = logits * factor
        if divisor is not None:
            logits = logits / divisor
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return logits

    return transform


BLOCK_BYTES = 4 * 2**20
GPU_BLOCK_BYTES = 32 * 2**20
"""Size of temporary blocks, at least one row: small ones stay in a CPU's cache, large ones save kernels on a GPU."""


def chosen_and_entropy(
    logits: Tensor, target_ids: Tensor, with_entropy: bool, entropy_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and the entropy of each row: float32 ``[n]`` twice (the second ``None`` without).

    Args:
        logits: float32 ``[n, vocabulary]``. The backward pass writes their gradient in their place: it can run once,
            and no earlier operation may need them.
        target_ids: int64 ``[n]``.
        with_entropy, entropy_gradient: Whether the entropy is computed, and differentiated.
    """
    chosen, entropy = _ChosenAndEntropy.apply(logits, target_ids, with_entropy, entropy_gradient)
    return chosen, entropy if with_entropy else None


class _ChosenAndEntropy(torch.autograd.Function):
    """``log p_t`` and ``H = -sum p log p`` for ``p = softmax(logits)``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target_ids: Tensor, with_entropy: bool, entropy_gradient: bool) -> Any:
        chosen = logits.gather(-1, target_ids[:, None]).squeeze(-1)
        norm, entropy = torch.empty_like(chosen), torch.zeros_like(chosen)
        for rows in _blocks(logits):
            block = logits[rows]
            norm[rows] = block.logsumexp(-1)
            if with_entropy:
                logprobs = block - norm[rows, None]
                entropy[rows] = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(logits, target_ids, norm, entropy)
        ctx.entropy_gradient = with_entropy and entropy_gradient
        return chosen - norm, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_chosen: Tensor, of_entropy: Tensor) -> Any:
        logits, target_ids, norm, entropy = ctx.saved_tensors
        # d log p_t / d z_j = [j = t] - p_j,   d H / d z_j = -p_j (log p_j + H)
        for rows in _blocks(logits):
            block = logits[rows].sub_(norm[rows, None])
            if ctx.entropy_gradient:
                probabilities = block.exp()
                block.add_(entropy[rows, None]).mul_(of_entropy[rows, None]).add_(of_chosen[rows, None]).mul_(
                    probabilities
                ).neg_()
            else:
                block.exp_().mul_(-of_chosen[rows, None])
        logits.scatter_add_(-1, target_ids[:, None], of_chosen[:, None])
        return logits, None, None, None


def _blocks(logits: Tensor) -> Iterator[slice]:
    size = max(1, (GPU_BLOCK_BYTES if logits.is_cuda else BLOCK_BYTES) // max(1, 4 * logits.shape[-1]))
    for start in range(0, logits.shape[0], size):
        yield slice(start, start + size)


def backbone_of(model: Any) -> nn.Module:
    """What computes the hidden states that the head of a causal language model reads."""
    parts = (model.base_model, model.get_decoder(), getattr(model, "model", model))
    return next((part for part in parts if part is not model), model)


PREFIX = "action_values."
"""What begins the names of these tensors among the weights that engines are sent."""
VALUES_FILE = "action_values/values.safetensors"
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

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):  # Small differences of values decide.
            out: Tensor = self.outer(torch.relu(self.inner(hidden.to(self.inner.weight.dtype))))
        return out if out.dtype == torch.float64 else out.float()


class ValueHead(Layers):
    """The same with tanh, from hidden states ``[n, width]`` to values ``[n]``; starts at zero."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden, 1, 0.0)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.with_features(hidden)[0]

    def with_features(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The values, and the features ``[n, hidden]`` that they are linear in."""
        with torch.autocast(hidden.device.type, enabled=False):
            features = torch.tanh(self.inner(hidden.to(self.inner.weight.dtype)))
            return self.outer(features).squeeze(-1).float(), features


class TokenValues(NamedTuple):
    """At ``A`` action tokens, with ``K`` heads, and at the ``B`` last states of episodes that were cut short.

    Attributes:
        q: float32 ``[K, A]``; of the token that was taken.
        q_logprobs: float32 ``[K, A]``; that token's log-probability if the values of all are logits.
        target_q: float32 ``[A]``; the least of the target heads, without gradient. Those of a lone head are its own.
        v, last_v: float32 ``[A]`` and ``[B]``; of the state it was taken in, and of the last ones. Empty without one.
    """

    q: Tensor
    q_logprobs: Tensor
    target_q: Tensor
    v: Tensor
    last_v: Tensor


class ActionValues(nn.Module):
    """Heads ``Q(s, .)`` over the vocabulary and ``V(s)``, of ILQL (2206.11871) as LMRL-Gym (2311.18232) has them.

    ``targets`` follow the heads slowly (:meth:`follow`) and are never trained.
    """

    def __init__(
        self, width: int, hidden: int, vocabulary: int, *, heads: int, state: bool, targets: bool, q_init: float
    ) -> None:
        super().__init__()
        self.q = nn.ModuleList(Layers(width, hidden, vocabulary, q_init) for _ in range(heads))
        self.v = Layers(width, hidden, 1, 0.0) if state else None
        self.targets = copy.deepcopy(self.q).requires_grad_(False) if targets else None

    def forward(self, hidden: Tensor, slow: Tensor, tokens: Tensor, last: Tensor, chunks: int) -> TokenValues:
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

    def for_engines(self, beta: float, backbone: nn.Module | None) -> dict[str, Tensor]:
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
        tensors: Mapping[str, Tensor],
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
                raise ValueError(f"they have {found} tokens and numbers of a state, the model's head {head}")
            self.backbone = backbone() if trunk and backbone is not None else None
            if self.backbone is not None:
                self.backbone.load_state_dict(trunk)
        except (KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"the action values cannot be used: {error}") from error
        self.to(device)

    def to(self, device: torch.device | str) -> None:
        for module in (self._heads, self.backbone):
            if module is not None:
                module.to(device)

    def added_to(self, logits: Tensor, hidden: Tensor) -> Tensor:
        """Logits ``[n, vocabulary]`` of states ``[n, width]`` with what their values add, float32."""
        values = torch.stack([head(hidden) for head in self._heads]).amin(0)
        return logits.float() + self.beta * values[..., : logits.shape[-1]]  # Some heads have rows of no token.


def has_backbone(values: Mapping[str, Any]) -> bool:
    return any(name.startswith(PREFIX + _BACKBONE) for name in values)


def split_values(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights of a policy, and those of its action values."""
    values = {name: each for name, each in state.items() if name.startswith(PREFIX)}
    return {name: each for name, each in state.items() if name not in values}, values


def save_values(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write what :meth:`ActionValues.for_engines` gives into a Hugging Face directory."""
    from safetensors.torch import save_file

    path = directory / VALUES_FILE
    path.parent.mkdir(exist_ok=True)
    save_file({name: each.cpu().contiguous() for name, each in tensors.items()}, path)
    follow_umask(path)


def load_values(directory: str | Path) -> dict[str, Tensor]:
    """What :func:`save_values` wrote; empty where there are none. Raises: ConfigError: the file is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(directory) / VALUES_FILE
    if not os.path.lexists(path):
        return {}
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError("language_model.model", f"{path} cannot be read ({error})") from error


def _of_tokens(head: Layers, hidden: Tensor, tokens: Tensor, chunks: int) -> tuple[Tensor, Tensor]:
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


def _chosen(head: Layers, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    values = head(hidden)
    value = values.gather(1, tokens[:, None]).squeeze(1)
    return value, value - values.logsumexp(-1)
