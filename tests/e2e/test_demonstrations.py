"""Demonstrations in the real stack: the same tokens in front of training, evaluation and what is exported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.evaluation.players.language_model import checkpoint_player
from rllib_lmgame.evaluation.players.settings import PlayerSettings
from rllib_lmgame.policies.chat.format import Conversation

MODEL = {
    "demonstrations": 2,
    "answer_tag": "move",  # Several tokens in this vocabulary.
    "reply_prefill": "<move>",
    "history": "keep",
    "context_length": 1024,
    "max_tokens_per_turn": 40,
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def test_every_game_begins_with_the_same_turns(make_config: Any, start: Any, tmp_path: Path, engine: str) -> None:
    if engine == "vllm":
        pytest.importorskip("vllm")
    config = make_config(
        language_model=MODEL,
        inference={"engine": engine, "start_timeout_s": 500.0},
        text_rollouts={"episodes_per_iteration": 8, "constrained_decoding": True},
        env_config={"max_turns": 2},
        seed=5,
    )
    algorithm = start(config)
    played: list[Any] = []
    inner = algorithm.update
    algorithm.update = lambda result: played.append(result) or inner(result)
    algorithm.train()
    chat = algorithm.env_runner.chat("player")
    checkpoint = algorithm.save_to_path(tmp_path / "checkpoint")
    turns = chat.options.demonstrations
    assert len(turns) == 2 and {turn["game"] for turn in turns} == {"lmgame/Sokoban-v0"}
    game = make_session("lmgame/Sokoban-v0", {})
    talk = Conversation(chat, game.instructions, game.game_id, "player")
    shown = talk.prompt(Observation("x")).ids
    front = len(shown) - len(chat.encode("x")) - 12
    assert len(chat.stop_strings) == 1 and all(f"<move>{turn['action']}</move>" in chat.decode(shown) for turn in turns)
    for episode in played[0].episodes:
        (seen,) = episode.agent_episodes.values()
        said = seen.get_extra_model_outputs("turn")
        prompts, replies = ([getattr(turn, n).tolist() for turn in said] for n in ("prompt_ids", "response_ids"))
        assert prompts[0][:front] == shown[:front]
        for reply in replies:
            closed = [n for n in range(1, len(reply) + 1) if "</move>" in chat.decode(reply[:n])]
            assert closed == [len(reply)]
    levels = {summary.level for summary in played[0].summaries}
    assert levels and not levels & {turn["level"] for turn in turns}

    player = checkpoint_player("p", str(checkpoint), str(checkpoint), None, PlayerSettings())
    assert player._chat.options.demonstrations == turns  # type: ignore[attr-defined]
    card = (Path(checkpoint) / "hf" / "README.md").read_text()
    (said,) = re.findall(r"'demonstrations': (\[.*\]),$", card, re.MULTILINE)
    assert eval(said) == turns
    assert json.loads((Path(checkpoint) / "lmgame_config.json").read_text())["language_model"]["demonstrations"] == 2
