"""Exploitability of a language model at Kuhn poker, exactly: its probability of every legal reply at every information set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rllib_lmgame.algorithms.checkpoints import hf_directory
from rllib_lmgame.algorithms.saved_config import open_checkpoint
from rllib_lmgame.envs.session import Observation
from rllib_lmgame.evaluation.exploitability import InformationSet, exploitability, game_values
from rllib_lmgame.policies.chat import ChatFormat, Conversation
from rllib_lmgame.policies.model_files import load_tokenizer


def exploitability_report(summaries: Sequence[Any]) -> None:
    """Print, and write to ``exploitability.json``, the exploitability of every finished trial's policy (averaged if weights are averaged)."""
    for summary in summaries:
        if not summary.checkpoint:
            continue
        result = checkpoint_exploitability(summary.checkpoint, trust=True)  # this run wrote it
        (Path(summary.path) / "exploitability.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        print(f"\nExploitability of {summary.checkpoint}")
        print(f"  policy:                          {result['exploitability']:.4f}  (uniform over legal actions: 0.4583; equilibrium: 0)")
        print(f"  value for the first player:      {result['value']:+.4f}  (equilibrium: -1/18 = -0.0556)")
        print(f"  largest probability of an illegal reply: {result['max_illegal']:.4f}")


def checkpoint_exploitability(checkpoint: str | Path, *, trust: bool = False) -> dict[str, float]:
    """Exploitability of the trained policy of a checkpoint playing all seats; ``trust`` as in :func:`.saved_config.open_checkpoint`.

    Returns:
        ``exploitability`` and ``value`` (first seat) of the policy restricted to legal replies, and ``max_illegal``, the
        largest probability it puts on anything else at any information set.
    """
    directory, config = open_checkpoint(checkpoint, trust=trust)
    trained = config.trained_policies()
    policy = trained[0]
    source = hf_directory(directory, policy, trained)
    options = config.language_model_of(policy)
    scorer = ReplyScorer(str(source), ChatFormat(load_tokenizer(str(source), options), options))
    env_config = {key: value for key, value in config.training_games()[0].env_config.items() if key == "players"}
    return {
        "exploitability": exploitability(scorer, env_config),
        "value": game_values(scorer, env_config)[0],
        "max_illegal": scorer.max_illegal,
    }


class ReplyScorer:
    """A policy for :mod:`~rllib_lmgame.evaluation.exploitability`: the model's probabilities of the legal replies.

    Args:
        model_dir: Hugging Face directory.
        chat: The chat format the model was trained with.
    """

    def __init__(self, model_dir: str, chat: ChatFormat) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype="float32", trust_remote_code=False, use_safetensors=True).eval()
        self.chat = chat
        self.max_illegal = 0.0

    def __call__(self, information_set: InformationSet) -> dict[str, float]:
        prompt = self._prompt(information_set)
        odds = {action: float(np.exp(self.logprob(prompt, self.chat.reply_ids(action)))) for action in information_set.legal_actions}
        total = sum(odds.values())
        self.max_illegal = max(self.max_illegal, 1.0 - total)
        return {action: p / total for action, p in odds.items()}

    def logprob(self, prompt: list[int], reply: list[int]) -> float:
        """Log-probability of a whole reply, stop token included."""
        import torch

        with torch.inference_mode():
            logits = self.model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].double()
        return float(torch.log_softmax(logits, -1).gather(1, torch.tensor(reply)[:, None]).sum())

    def _prompt(self, information_set: InformationSet) -> list[int]:
        conversation = Conversation(self.chat, information_set.instructions)
        for observation, reply in zip(information_set.observations, information_set.replies, strict=False):
            conversation.prompt(Observation(observation))
            conversation.reply(np.asarray(self.chat.reply_ids(reply), np.int32))
        return conversation.prompt(Observation(information_set.observations[-1])).ids
