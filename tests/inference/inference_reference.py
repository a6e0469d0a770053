"""A plain float32 reference for the engines, and small helpers of their tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.inference.serving.client import EngineClient

VOCAB, CONTEXT, STOP = 96, 256, 1
SIZES = {
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": STOP,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 2,
}


PIECES = ["<", "/", "a", ">", "</", "a>", "/a", ">.", "b", *(f"{a}{b}" for a in "<ab>." for b in "<ab>.")]


def tokenizer_of(pieces: Sequence[str]) -> Any:
    """A tokenizer of ``VOCAB`` tokens: ``pieces`` behind three special ones, then what comes nowhere else."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    known = dict.fromkeys(["<s>", "<end>", "<pad>", *pieces])
    tokens = [*known, *(f"_{number}" for number in range(VOCAB - len(known)))]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<end>", pad_token="<pad>")


def qwen2(seed: int) -> Any:
    """A random tied Qwen2 with sharp enough logits that top-p and the weights matter."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, intermediate_size=96, tie_word_embeddings=True)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def state_of(model: Any) -> dict[str, np.ndarray]:
    """Hugging Face named weights without the tied head."""
    return {n: p.detach().numpy().copy() for n, p in model.named_parameters()}


def reference_logprobs(
    model: Any, prompt: list[int], reply: Any, spec: SamplingSpec, choices: Any = None
) -> np.ndarray:
    """Log-probabilities of ``reply`` by one full forward pass, token by token, written out plainly."""
    import torch

    ids = torch.tensor([[*prompt, *map(int, reply)]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
    values = []
    for position, token in enumerate(map(int, reply)):
        row = logits[position] / (spec.temperature or 1.0)
        keep = torch.ones_like(row, dtype=torch.bool)
        if choices is not None:
            fitting = [c for c in choices if list(c[:position]) == [int(t) for t in reply[:position]]]
            keep = torch.zeros_like(keep)
            keep[[c[position] for c in fitting if len(c) > position]] = True
        if spec.temperature > 0:
            if spec.top_k:
                keep &= row >= torch.where(keep, row, -torch.inf).sort(descending=True).values[spec.top_k - 1]
            probabilities = torch.where(keep, row, -torch.inf).softmax(-1)
            order = probabilities.argsort(descending=True)
            before = probabilities[order].cumsum(-1) - probabilities[order]
            keep[order[before >= spec.top_p]] = False
        values.append(torch.where(keep, row, -torch.inf).log_softmax(-1)[token].item())
    return np.array(values, np.float32)


def requests(
    count: int, spec: SamplingSpec, *, seed: int = 0, prefix: str = "r", choices: Any = None
) -> list[GenerationRequest]:
    """``count`` requests with random prompts of different lengths."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(rng.randrange(3, 40))] for _ in range(count)]
    return [GenerationRequest(f"{prefix}{i}", prompt, spec, choices) for i, prompt in enumerate(prompts)]


def generate_all(engine: Any, batch: list[GenerationRequest]) -> list[Generation]:
    """Answers in the order of the requests."""

    async def run() -> list[Generation]:
        return list(await asyncio.gather(*(engine.generate(r) for r in batch)))

    return asyncio.run(run())


def ask(names: Any, batch: list[GenerationRequest], timeout_s: float = 600.0) -> list[Generation]:
    """What the engine actors of these names answer, in the order of the requests."""

    async def run() -> list[Generation]:
        client = EngineClient(names, request_timeout_s=timeout_s)
        return list(await asyncio.gather(*(client.generate(r) for r in batch)))

    return asyncio.run(run())


def gap(model: Any, batch: list[GenerationRequest], generations: list[Generation]) -> float:
    """The largest distance of a log-probability from the reference's."""
    distances = []
    for request, generation in zip(batch, generations, strict=True):
        assert generation.stop_reason is not StopReason.ENGINE_ERROR, generation.error
        ids = generation.response_ids
        expected = reference_logprobs(model, request.prompt_ids, ids, request.sampling, request.choices)
        distances.append(np.abs(expected - generation.logprobs).max())
    return float(np.max(distances))


def sound(model: Any, batch: list[GenerationRequest], generations: list[Generation]) -> bool:
    """Whether all log-probabilities are the reference's."""
    return gap(model, batch, generations) <= 1e-5


def learner_module(model_dir: str, context: int) -> Any:
    """A model as the learner holds it."""
    import gymnasium as gym

    from rllib_lmgame.policies.model.rl_module import LanguageModelRLModule

    space = gym.spaces.Text(4)
    config = {"options": {"context_length": context}, "model_dir": model_dir}
    return LanguageModelRLModule(observation_space=space, action_space=space, model_config=config, inference_only=False)
