"""A runner on the driver, without Ray, whose engine is a function of the prompt."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.envs import make_session
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.policies.chat.corpus import game_corpus
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import ModelFiles
from rllib_lmgame.policies.model.tiny import build_tiny_model
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner

sys.path.insert(0, str(Path(__file__).parent))


class FakeClient:
    """An engine client that answers with texts.

    Args:
        chat: Writes the answers.
        answer: Prompt text and turn -> action, ids or a whole generation; may be a coroutine function, may raise.
    """

    def __init__(self, chat: ChatFormat, answer: Callable[..., Any]) -> None:
        self.chat = chat
        self.answer = answer
        self.requests: list[GenerationRequest] = []
        self.keys: list[str | None] = []
        self.forgotten: list[str] = []
        self.closed = False

    async def generate(self, request: GenerationRequest, key: str | None = None) -> Generation:
        self.requests.append(request)
        self.keys.append(key)
        answer = self.answer(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Generation):
            return answer
        ids = np.asarray(self.chat.reply_ids(answer) if isinstance(answer, str) else answer, np.int32)
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 7
        return Generation(request.request_id, ids, logprobs, StopReason.EOS, policy_version=3)

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that knows the words of two games."""
    texts = [
        text
        for game in ("lmgame/Sokoban-v0", "lmgame/TicTacToe-v0")
        for text in game_corpus(make_session(game, {}), episodes=8)
    ]
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 32}
    return build_tiny_model(tmp_path_factory.mktemp("model"), texts, shape)


@pytest.fixture
def make_runner(model_dir: Path, tmp_path: Path) -> Callable[..., TextGameEnvRunner]:
    """A runner for a game.

    Arguments: ``env``; ``answer`` (see :class:`FakeClient`); ``rollouts``, ``model``: options of these sections;
    ``players``: arguments of ``config.players``; ``sections``: options of other sections.
    """

    def build(
        env: str = "lmgame/Sokoban-v0",
        answer: Callable[..., Any] | None = None,
        *,
        env_config: dict[str, Any] | None = None,
        rollouts: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        players: dict[str, Any] | None = None,
        sections: dict[str, Any] | None = None,
        **attributes: Any,
    ) -> TextGameEnvRunner:
        config = LMGamePPOConfig().environment(env, env_config=env_config or {})
        config.language_model(**{"model": str(model_dir), "max_tokens_per_turn": 32, **(model or {})}).text_rollouts(
            **(rollouts or {})
        )
        if players:
            config.players(**players)
        config.change(sections or {})
        for name, value in {"episode_log_dir": str(tmp_path / "episodes"), **attributes}.items():
            setattr(config, name, value)
        config.model_files = {policy: ModelFiles(str(model_dir)) for policy in config.language_model_policies()}
        config.engine_names = {policy: ["engine"] for policy in config.language_model_policies()}
        runner = TextGameEnvRunner(config=config)
        for policy in config.language_model_policies():
            runner._clients[policy] = FakeClient(runner.chat(policy), answer or (lambda request: "Up"))  # type: ignore[assignment]
        return runner

    return build
