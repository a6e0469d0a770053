"""A run on one of AgentGym's servers: real engine, env runner, learner; a server on loopback."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from agentgym_server import serving


@pytest.mark.slow
def test_a_run_plays_items_drops_what_fails_and_leaves_no_session_open(start: Any, make_config: Any) -> None:
    def fault(path: str, body: dict[str, Any]) -> tuple[int, bytes] | None:
        return (200, b'{"error": "broken item"}') if path == "/reset" and body["data_idx"] % 5 == 0 else None

    with serving("textcraft", fault=fault) as server:
        game = {"url": server.url, "ids": "0-39", "split": "all", "max_turns": 2}
        model = {"reply_format": "whole", "reply_prefill": "", "context_length": 256, "max_tokens_per_turn": 8}
        config = make_config(
            env="agentgym:textcraft",
            env_config=game,
            language_model=model,
            text_rollouts={"max_failed_rounds": 8},
            num_env_runners=2,
            num_envs_per_env_runner=4,
        )
        algorithm = start(config)
        result = algorithm.train()["env_runners"]
        assert result["num_episodes"] == 16 and result["dropped"]["env_error"] >= 1
        assert server.asked["/step"] > 0 and server.most_open <= 8 + result["dropped"]["env_error"]
        before = {body["data_idx"] for path, body in server.bodies if path == "/reset"}
        assert len(before) >= 16, "every item is played once before any is played again"

        server.fault = None
        algorithm.stop()
        for _ in range(2_000):
            if not server.open:
                break
            threading.Event().wait(0.005)
        assert not server.open
