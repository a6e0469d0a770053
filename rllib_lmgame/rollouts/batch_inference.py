"""Probabilities of a model's replies at given decisions of a game, in one batch, without playing.

The engine scores each token of every legal reply at temperature 1, which is exact for models that answer at once. A
model that reasons first is sampled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract import InvalidAction, read_word
from rllib_lmgame.envs.contract.sequence_form import InformationSet
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation, Prompt
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.seats import Generate


class NotAnswered(RuntimeError):
    """An engine did not answer; asking again may help."""


class NoRoom(ConfigError):
    """Decisions of a batch that leave no room for a reply in the context; ``tokens`` lead to the first of them."""

    def __init__(self, decisions: Sequence[InformationSet], tokens: int) -> None:
        super().__init__(
            "config.language_model.context_length",
            f"{tokens} tokens lead to the decision {decisions[0].observation!r}, which leaves no room for a reply",
        )


@dataclass(frozen=True)
class Answer:
    """The model's replies at one decision.

    Attributes:
        odds: Probability of each legal action, given that the reply is legal.
        illegal: Probability of all other replies.
        counts: Number of samples of each legal action, if there were samples.
    """

    odds: Mapping[str, float]
    illegal: float
    counts: Mapping[str, int] | None = None


async def ask(
    decisions: Sequence[InformationSet], chat: ChatFormat, generate: Generate, *, constrained_decoding: bool
) -> list[Answer]:
    """Probabilities of whole replies at ``decisions``; all requests are made at once.

    ``constrained_decoding`` limits decoding to the legal actions, token by token, as in training.

    Raises: NotAnswered: the engine failed; NoRoom: decisions do not fit the context; ConfigError: the tokenizer can
        spell none of a decision's actions.
    """
    asked: list[tuple[int, str, tuple[int, ...]]] = []
    requests: list[GenerationRequest] = []
    for number, (decision, prompt) in enumerate(zip(decisions, prompts_of(decisions, chat), strict=True)):
        for action, reply in _spelled(decision, chat).items():
            sampling = SamplingSpec(len(reply), **chat.ends)
            requests.append(GenerationRequest(f"score-{len(requests)}", prompt.ids, sampling, None, reply))
            asked.append((number, action, reply))
    generations = await asyncio.gather(*(generate(request) for request in requests))
    found: list[dict[str, tuple[tuple[int, ...], np.ndarray]]] = [{} for _ in decisions]
    for (number, action, reply), generation in zip(asked, generations, strict=True):
        found[number][action] = (reply, _scored(generation, reply))
    return [_constrained(replies) if constrained_decoding else _among_legal(replies) for replies in found]


async def ask_for_samples(
    decisions: Sequence[InformationSet],
    chat: ChatFormat,
    generate: Generate,
    *,
    samples: int,
    temperature: float = 1.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[Answer]:
    """As :func:`ask`, from ``samples`` replies to each decision, for models that reason first.

    If no reply is legal, all legal actions are equally likely. The prompt shows earlier replies without reasoning.
    ``numbers`` (by default the places of the decisions) seed the draws together with ``seed``.

    Raises: NotAnswered: the engine failed; NoRoom: decisions do not fit the context.
    """
    places = range(len(decisions)) if numbers is None else numbers
    requests = []
    for decision, number, prompt in zip(decisions, places, prompts_of(decisions, chat), strict=True):
        for n in range(samples):
            own = stable_seed(seed, number, len(decision.replies), n, "asked")
            sampling = SamplingSpec(prompt.max_tokens, temperature, seed=own, **chat.ends)
            requests.append(GenerationRequest(f"sample-{number}-{n}", prompt.ids, sampling))
    generations = iter(await asyncio.gather(*(generate(request) for request in requests)))
    answers = []
    for decision in decisions:
        counts = dict.fromkeys(decision.legal_actions, 0)
        for _ in range(samples):
            action = _legal(_said(next(generations), decision, chat), decision)
            if action is not None:
                counts[action] += 1
        answers.append(sampled_answer(counts, samples))
    return answers


def sampled_answer(counts: Mapping[str, int], samples: int) -> Answer:
    """The answer from ``counts`` of legal actions among ``samples`` replies."""
    legal = sum(counts.values())
    odds = {action: count / legal if legal else 1 / len(counts) for action, count in counts.items()}
    return Answer(odds, 1 - legal / samples, counts)


def prompts_of(decisions: Sequence[InformationSet], chat: ChatFormat) -> list[Prompt]:
    """The prompt of each decision. Raises: NoRoom: some leave no room for a reply."""
    prompts = [prompt_of(decision, chat) for decision in decisions]
    full = [number for number, prompt in enumerate(prompts) if not prompt.max_tokens]
    if full:
        raise NoRoom([decisions[number] for number in full], len(prompts[full[0]].ids))
    return prompts


def prompt_of(decision: InformationSet, chat: ChatFormat) -> Prompt:
    """The prompt of a decision, with ``max_tokens`` 0 if there is no room for a reply."""
    chat = chat.for_game(decision.functions)
    conversation = Conversation(chat, decision.instructions, role=decision.role or decision.agent_id)
    for observation, reply in zip(decision.observations, decision.replies, strict=False):
        conversation.prompt(Observation(observation))
        conversation.reply(np.asarray(chat.reply_ids(reply), np.int32))
    return conversation.prompt(Observation(decision.observation, decision.legal_actions))


def _spelled(decision: InformationSet, chat: ChatFormat) -> dict[str, tuple[int, ...]]:
    """Tokens of the replies that play the legal actions; those the tokenizer cannot spell are left out."""
    choice_ids = chat.for_game(decision.functions).choice_ids
    replies = {action: choice_ids(action) for action in decision.legal_actions}
    spelled = {action: reply for action, reply in replies.items() if reply is not None}
    if not spelled:
        said = f"none of {', '.join(decision.legal_actions)} as `{chat.options.reply_format.type}`"
        raise ConfigError("config.language_model.tokenizer", f"it can spell {said}")
    return spelled


def _answered(generation: Generation) -> Generation:
    if generation.stop_reason is StopReason.ENGINE_ERROR:
        raise NotAnswered(generation.error or "the engine failed")
    return generation


def _scored(generation: Generation, reply: tuple[int, ...]) -> np.ndarray:
    _answered(generation)
    if tuple(np.asarray(generation.response_ids).tolist()) != reply:
        raise ConfigError("config.inference.engine", "does not score replies (`GenerationRequest.scored`)")
    logprobs = np.asarray(generation.logprobs, np.float64)
    if np.isnan(logprobs).any():
        raise NotAnswered("the engine gave a log-probability that is no number")
    return logprobs


def _among_legal(replies: Mapping[str, tuple[tuple[int, ...], np.ndarray]]) -> Answer:
    """Probabilities of whole replies, as if the model were asked again until its reply is legal."""
    totals = np.array([logprobs.sum() for _, logprobs in replies.values()])
    weights = np.exp(totals - totals.max())
    odds = dict(zip(replies, (weights / weights.sum()).tolist(), strict=True))
    return Answer(odds, max(0.0, 1.0 - float(np.exp(totals).sum())))


def _constrained(replies: Mapping[str, tuple[tuple[int, ...], np.ndarray]]) -> Answer:
    """Probabilities where each token is chosen among those that still lead to a legal reply."""
    nodes: dict[tuple[int, ...], dict[int, float]] = {}
    for reply, logprobs in replies.values():
        for n, token in enumerate(reply):
            nodes.setdefault(reply[:n], {})[token] = float(logprobs[n])
    odds = {}
    for action, (reply, _) in replies.items():
        chosen = [(nodes[reply[:n]], token) for n, token in enumerate(reply)]
        odds[action] = float(
            np.exp(sum(there[token] - np.logaddexp.reduce([*there.values()]) for there, token in chosen))
        )
    return Answer(odds, 0.0)


def _said(generation: Generation, decision: InformationSet, chat: ChatFormat) -> str | None:
    form = chat.for_game(decision.functions).reply_format
    return form.parse(chat.read(_answered(generation).response_ids)).action


def _legal(said: str | None, decision: InformationSet) -> str | None:
    if said is None or said.strip() in decision.legal_actions:
        return said and said.strip()
    try:
        return read_word(said, decision.legal_actions, "action")
    except InvalidAction:
        return None
