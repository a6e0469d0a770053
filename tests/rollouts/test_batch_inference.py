"""What a model would reply, asked of an engine and put beside a plain forward pass and known figures."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from rllib_lmgame.algorithms.measuring.exact import numbers_of
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.sequence_form import GameTree
from rllib_lmgame.envs.registry import make_session
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.measures.exploitability import exploitability, odds_of, uniform_policy
from rllib_lmgame.measures.game_tree import game_tree
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts.batch_inference import (
    NotAnswered,
    ask,
    ask_for_samples,
    prompt_of,
    prompts_of,
    sampled_answer,
)

KUHN, LEDUC, DICE = "lmgame/KuhnPoker-v0", "lmgame/LeducPoker-v0", "lmgame/LiarsDice-v0"
SHAPE = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 32, "vocab_size": 400}


def chat_of(directory: str, **options) -> ChatFormat:
    chosen = LanguageModelOptions(
        model=directory, **{"reply_prefill": "<answer>", "max_tokens_per_turn": 8, "context_length": 1024, **options}
    )
    return ChatFormat(load_tokenizer(directory, chosen), chosen)


def answers(directory: str, function, decisions, chat: ChatFormat, kind: str = "transformers", **more):
    """What an engine on the files of ``directory`` is asked."""

    async def run():
        engine = InferenceOptions(engine=kind).engine.engine_class()(
            directory, InferenceOptions(engine=kind, kv_cache_memory_mb=64), context_length=1024, seed=0
        )
        await engine.start()
        try:
            return await function(decisions, chat, engine.generate, **more)
        finally:
            await engine.shutdown()

    return asyncio.run(run())


def plain_odds(directory: str, tree: GameTree, chat: ChatFormat, constrained: bool) -> list[dict[str, float]]:
    """The same by one plain forward pass per reply, token by token."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32").eval()
    result = []
    for decision in tree.information_sets:
        prompt = prompt_of(decision, chat).ids
        replies = {action: chat.reply_ids(action) for action in decision.legal_actions}
        odds = {}
        for action, reply in replies.items():
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].double()
            odds[action] = 1.0
            for n, token in enumerate(reply):
                row = logits[n]
                if constrained:
                    allowed = sorted({other[n] for other in replies.values() if other[:n] == reply[:n]})
                    row = torch.full_like(row, -torch.inf).index_put((torch.tensor(allowed),), row[allowed])
                odds[action] *= float(row.softmax(-1)[token])
        total = 1.0 if constrained else sum(odds.values())
        result.append({action: p / total for action, p in odds.items()})
    return result


@pytest.mark.parametrize("history", ["keep", "window"])
@pytest.mark.parametrize("constrained", [False, True])
def test_odds_are_those_of_a_plain_forward(tiny_model_dir: str, constrained: bool, history: str) -> None:
    tree, chat = game_tree(KUHN), chat_of(tiny_model_dir, history=history)
    found = answers(tiny_model_dir, ask, tree.information_sets, chat, constrained_decoding=constrained)
    expected = plain_odds(tiny_model_dir, tree, chat, constrained)
    for decision, answer, odds in zip(tree.information_sets, found, expected, strict=True):
        assert dict(answer.odds) == pytest.approx(odds, abs=1e-5), decision
        assert (answer.illegal == 0) if constrained else (0 < answer.illegal < 1)
    assert len({tuple(answer.odds.values()) for answer in found}) > 10, "the texts must matter"


def test_what_is_asked_stands_behind_the_demonstrations_of_its_role(tiny_model_dir: str) -> None:
    roles = make_session(KUHN, {}).roles
    shown = [{"observation": f"shown to {role}", "action": "1", "role": role} for role in roles.values()]
    chat = chat_of(tiny_model_dir, demonstrations=shown)
    for agent, role in roles.items():
        decision = next(each for each in game_tree(KUHN).information_sets if each.agent_id == agent)
        text = chat.tokenizer.decode(prompt_of(decision, chat).ids)
        assert [f"shown to {each}" in text for each in roles.values()] == [each == role for each in roles.values()]


@pytest.mark.parametrize("kind", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("game", "config", "corpus", "uniform"),
    [
        (KUHN, {}, (), 0.4583333),
        (KUHN, {"players": 3}, (), 2.0625 / 3),
        pytest.param(LEDUC, {}, ("check", "call", "raise", "fold") * 40, 2.3736111, marks=pytest.mark.slow),
        # A bid has three tokens; so has `liar`, if `li` is one and the rest is not.
        pytest.param(DICE, {"sides": 4}, ("li",) * 40, 0.6550595, marks=pytest.mark.slow),
    ],
)
def test_uniform_play_through_texts_prompts_and_an_engine(game, config, corpus, uniform, kind, tmp_path) -> None:
    """A model whose weights are all zero gives every token the same probability, so all actions of equally many."""
    import safetensors.numpy

    texts = corpus or game_corpus(make_session(game, config))
    directory = str(build_tiny_model(tmp_path, texts, SHAPE))
    file = tmp_path / "model.safetensors"
    weights = safetensors.numpy.load_file(file)
    safetensors.numpy.save_file({n: np.zeros_like(w) for n, w in weights.items()}, file, {"format": "pt"})
    tree, chat = game_tree(game, config), chat_of(directory, system_prompt="", history="window")
    assert len({len(chat.reply_ids(action)) for s in tree.information_sets for action in s.legal_actions}) == 1
    numbers = numbers_of(tree, answers(directory, ask, tree.information_sets, chat, kind, constrained_decoding=False))
    assert numbers["exploitability"] == pytest.approx(uniform, abs=1e-6)
    assert numbers["exploitability"] == pytest.approx(exploitability(tree, odds_of(uniform_policy, tree)), abs=1e-9)


def test_samples_are_read_and_counted(tiny_model_dir: str) -> None:
    """Replies with reasoning before the answer; what is illegal or unreadable counts for no action."""
    tree, chat = game_tree(KUHN), chat_of(tiny_model_dir, think="required", reply_prefill="")
    decisions = [s for s in tree.information_sets if "bet" in s.legal_actions][:3]
    turns = itertools.count()
    said = ("check", "bet", "bet", "call", "Bet.", "nothing at all", "check", "bet")

    async def generate(request: GenerationRequest) -> Generation:
        assert request.sampling.seed is not None and request.sampling.temperature == 0.5
        ids = np.array(chat.reply_ids(said[next(turns) % len(said)], "a bet is bold"), np.int32)
        return Generation(request.request_id, ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0)

    found = asyncio.run(ask_for_samples(decisions, chat, generate, samples=len(said), temperature=0.5))
    for answer in found:
        assert answer.counts == {"check": 2, "bet": 4}
        assert dict(answer.odds) == pytest.approx({"check": 1 / 3, "bet": 2 / 3}) and answer.illegal == 0.25
    assert dict(sampled_answer({"check": 0, "bet": 0}, 8).odds) == {"check": 0.5, "bet": 0.5}


def test_what_goes_wrong_is_told(tiny_model_dir: str) -> None:
    tree, chat = game_tree(KUHN), chat_of(tiny_model_dir)
    seen = itertools.count()

    async def broken(request: GenerationRequest) -> Generation:
        nothing = np.zeros(0, np.float32)
        return Generation(request.request_id, nothing, nothing, StopReason.ENGINE_ERROR, 0, f"gone {next(seen)}")

    async def another(request: GenerationRequest) -> Generation:
        return Generation(request.request_id, np.array([5], np.int32), np.zeros(1, np.float32), StopReason.EOS, 0)

    for generate, error, words in ((broken, NotAnswered, "gone 0"), (another, ConfigError, "does not score")):
        with pytest.raises(error, match=words):
            asyncio.run(ask(tree.information_sets, chat, generate, constrained_decoding=False))
    with pytest.raises(ConfigError, match="no room"):
        prompts_of([tree.information_sets[0]], chat_of(tiny_model_dir, context_length=16))
