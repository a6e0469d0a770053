"""What a model would reply at given decisions of a game: probabilities, in one batch, without playing.

The engine gives the log-probability of each token of every legal reply, at temperature 1. That is exact for a model
that answers at once. A model that reasons first is asked for samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract import InvalidAction, read_word
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation, Prompt
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.seats import Generate


class NotAnswered(RuntimeError):
    """An engine did not answer; asking again may help."""


class NoRoom(ConfigError):
    """Decisions of a batch that leave no room for a reply in the context; ``tokens`` lead to the first of them."""

    def __init__(self, decisions: Sequence[InformationSet], tokens: int) -> None:
        self.decisions = tuple(decisions)
        super().__init__(
            "config.language_model.context_length",
            f"{tokens} tokens lead to the decision {decisions[0].observation!r}, which leaves no room for a reply",
        )


@dataclass(frozen=True)
class Answer:
    """What the model would reply at one decision.

    Attributes:
        odds: Probability of each legal action, given that it is legal. In free words: 1 for what was said.
        illegal: Probability of everything else. In free words: 1 if the reply cannot be read, else 0.
        counts: How often each legal action was sampled, if samples were asked for.
    """

    odds: Mapping[str, float]
    illegal: float
    counts: Mapping[str, int] | None = None


async def ask(
    decisions: Sequence[InformationSet], chat: ChatFormat, generate: Generate, *, constrained_decoding: bool
) -> list[Answer]:
    """The model's probabilities at ``decisions``, of whole replies; all requests are made at once.

    With ``constrained_decoding`` decoding is limited to the legal actions, token by token, as in training.

    Raises: NotAnswered if the engine failed; NoRoom if decisions do not fit the context; ConfigError if the tokenizer
    can spell none of a decision's actions.
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
    """As :func:`ask`, with ``samples`` replies to each decision: for a model that reasons before it answers.

    If none of the replies is legal, all legal actions are equally likely. The prompt shows the player's earlier replies
    without their reasoning. Each decision has one of ``numbers``, which makes its draws with the seed: that of its
    game, or by default its place.

    Raises: NotAnswered if the engine failed; NoRoom if decisions do not fit the context.
    """
    requests = []
    for decision, number, prompt in _numbered(decisions, numbers, chat):
        for n in range(samples):
            own = stable_seed(seed, number, len(decision.replies), n, "asked")
            sampling = _sampling(prompt, chat, temperature, own)
            requests.append(GenerationRequest(f"sample-{number}-{n}", prompt.ids, sampling))
    generations = await asyncio.gather(*(generate(request) for request in requests))
    answers = []
    for number, decision in enumerate(decisions):
        counts = dict.fromkeys(decision.legal_actions, 0)
        for generation in generations[number * samples : (number + 1) * samples]:
            action = _read(generation, decision, chat)
            if action is not None:
                counts[action] += 1
        answers.append(sampled_answer(counts, samples))
    return answers


async def ask_for_words(
    decisions: Sequence[InformationSet],
    chat: ChatFormat,
    generate: Generate,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
) -> list[Answer]:
    """One drawn reply to each decision that lists no legal actions; arguments and errors as :func:`ask_for_samples`."""
    requests = []
    for decision, number, prompt in _numbered(decisions, numbers, chat):
        own = stable_seed(seed, number, len(decision.replies), "words")
        requests.append(GenerationRequest(f"words-{number}", prompt.ids, _sampling(prompt, chat, temperature, own)))
    generations = await asyncio.gather(*(generate(request) for request in requests))
    said = [_said(generation, decision, chat) for generation, decision in zip(generations, decisions, strict=True)]
    return [Answer({words or "": 1.0}, float(words is None)) for words in said]


def _numbered(
    decisions: Sequence[InformationSet], numbers: Sequence[int] | None, chat: ChatFormat
) -> Iterator[tuple[InformationSet, int, Prompt]]:
    return zip(
        decisions, range(len(decisions)) if numbers is None else numbers, prompts_of(decisions, chat), strict=True
    )


def _sampling(prompt: Prompt, chat: ChatFormat, temperature: float, seed: int) -> SamplingSpec:
    return SamplingSpec(prompt.max_tokens, temperature, seed=seed, **chat.ends)


def sampled_answer(counts: Mapping[str, int], samples: int) -> Answer:
    """The answer that ``counts`` legal ones of ``samples`` replies make."""
    legal = sum(counts.values())
    odds = {action: count / legal if legal else 1 / len(counts) for action, count in counts.items()}
    return Answer(odds, 1 - legal / samples, counts)


def prompts_of(decisions: Sequence[InformationSet], chat: ChatFormat) -> list[Prompt]:
    """What the model is shown at each decision; raises :class:`NoRoom` if some leave no room for a reply."""
    prompts = [prompt_of(decision, chat) for decision in decisions]
    full = [number for number, prompt in enumerate(prompts) if not prompt.max_tokens]
    if full:
        raise NoRoom([decisions[number] for number in full], len(prompts[full[0]].ids))
    return prompts


def prompt_of(decision: InformationSet, chat: ChatFormat) -> Prompt:
    """What the model is shown at a decision, with ``max_tokens`` 0 where there is no room for a reply."""
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
        raise ConfigError(
            "config.language_model.tokenizer",
            f"it can spell none of {', '.join(decision.legal_actions)} as `{chat.options.reply_format}`",
        )
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


def _read(generation: Generation, decision: InformationSet, chat: ChatFormat) -> str | None:
    said = _said(generation, decision, chat)
    if said is None:
        return None
    if said.strip() in decision.legal_actions:
        return said.strip()
    try:
        return read_word(said, decision.legal_actions, "action")
    except InvalidAction:
        return None
