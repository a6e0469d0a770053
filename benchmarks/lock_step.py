"""Rollouts in lock-step, as vectorised environments are played, against ours: the same games, engine and requests.

In lock-step all games are asked at once, the longest reply of the round is waited for, and then the games take their
steps one after another. 64 games of 5 turns; a reply has 1 to 16 tokens, the same number in both; games take no time
or 10 ms a step. Each repeat plays all four in turn with an empty prefix cache.

    python benchmarks/lock_step.py [--repeats 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from recital import Recital  # noqa: E402
from report import Row, command, medians, show  # noqa: E402

from rllib_lmgame.envs.registry import make_session  # noqa: E402
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec  # noqa: E402
from rllib_lmgame.policies.chat.format import ChatFormat, Conversation  # noqa: E402
from rllib_lmgame.rollouts.options import GameConfig  # noqa: E402
from rllib_lmgame.rollouts.plans import EpisodePlan, plan_episodes, stable_seed  # noqa: E402
from rllib_lmgame.rollouts.records import PlaySettings  # noqa: E402

GAMES, TURNS, REPLY, STEP_MS = 64, 5, 16, 10

ROWS: tuple[Row, ...] = (
    # key, what it is, format, target, whether the target is a lower limit
    ("ours_s", "ours, s", ".2f", None, False),
    ("lock_step_s", "lock-step, s", ".2f", None, False),
    ("ratio", "lock-step / ours", ".2f", 1.3, True),
    ("ours_slow_s", f"ours, games of {STEP_MS} ms a step, s", ".2f", None, False),
    ("lock_step_slow_s", f"lock-step, games of {STEP_MS} ms a step, s", ".2f", None, False),
    ("ratio_slow", f"lock-step / ours, games of {STEP_MS} ms a step", ".2f", 1.7, True),
    ("tokens", "tokens of replies, in each of the four", ".0f", None, False),
)


class Slow(Recital):
    """Recital whose steps take a while, as a program, a search or a browser does."""

    def __init__(self, step_ms: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.step_ms = step_ms

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_ms / 1000)
        return super().step(action)


class Uneven:
    """A client of engines whose replies have 1 to ``most`` tokens, by the name of the request; ``tokens`` counts."""

    def __init__(self, client: Any, most: int) -> None:
        self.client, self.most, self.tokens = client, most, 0

    async def generate(self, request: GenerationRequest, key: str | None = None) -> Generation:
        length = 1 + stable_seed(request.request_id) % self.most
        sampling = replace(request.sampling, max_tokens=length, stop_token_ids=(), stop_strings=())
        reply: Generation = await self.client.generate(replace(request, sampling=sampling), key)
        if reply.error is not None or len(reply.response_ids) != length:
            raise RuntimeError(reply.error or f"a reply has {len(reply.response_ids)} tokens in place of {length}")
        self.tokens += length
        return reply

    def forget(self, key: str) -> None:
        self.client.forget(key)

    def close(self) -> None:
        self.client.close()


async def lock_step(client: Any, chat: ChatFormat, plans: Sequence[EpisodePlan], game: GameConfig) -> list[float]:
    """Play ``plans`` in rounds; what each episode returned."""
    tables = []
    for plan in plans:
        session = make_session(game.env, dict(game.env_config))
        session.reset(plan.seed)
        (agent,) = session.agent_ids
        tables.append((plan, session, agent, Conversation(chat, session.instructions, session.game_id)))
    returns, over = [0.0] * len(tables), [False] * len(tables)
    turn = 0
    while not all(over):
        playing = [place for place, ended in enumerate(over) if not ended]
        requests = []
        for place in playing:
            plan, session, agent, conversation = tables[place]
            prompt = conversation.prompt(session.observe(agent))
            sampling = SamplingSpec(prompt.max_tokens, 1.0, **chat.ends)
            requests.append(GenerationRequest(f"{plan.episode_id}/{agent}/{turn}", prompt.ids, sampling))
        replies = await asyncio.gather(
            *(
                client.generate(request, tables[place][0].episode_id)
                for place, request in zip(playing, requests, strict=True)
            )
        )
        for place, reply in zip(playing, replies, strict=True):
            _, session, agent, conversation = tables[place]
            parsed = conversation.reply(reply.response_ids)
            result = session.step({agent: parsed.action or ""})
            returns[place] += result.rewards[agent]
            over[place] = result.terminated or result.truncated
        turn += 1
    return returns


def ours(runner: Any, client: Any, plans: list[EpisodePlan], game: GameConfig) -> list[float]:
    """Play ``plans`` as a rollout does; what each episode returned."""
    before, runner._clients = runner._clients, {"player": client}
    try:
        result = runner.play(plans, PlaySettings((game,)))
    finally:
        runner._clients = before
    if result.error is not None or result.failures:
        raise result.error or RuntimeError(result.failures[0].message)
    return [sum(seat.episode_return for seat in summary.seats) for summary in result.summaries]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7, help="measured repeats, after --warm-up others")
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to this file")
    arguments = parser.parse_args()
    from machine import machine, own_ray

    report: dict[str, Any] = {"command": command(__file__), "machine": machine()}
    with own_ray(num_cpus=8, threads=arguments.threads):
        report["repeats"] = measure(arguments)
    report["medians"] = medians(report["repeats"])
    show(report, ROWS, arguments.json)


def measure(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """The figures of each repeat."""
    from rllib_lmgame.inference.serving.client import EngineClient

    algorithm: Any = make_config(arguments.threads).build_algo()
    repeats = []
    with contextlib.ExitStack() as stack:
        stack.callback(algorithm.stop)
        runner, engines = algorithm.env_runner, algorithm.config.engine_names["player"]
        games = [GameConfig(env="lock_step:Slow", env_config={"turns": TURNS, "step_ms": ms}) for ms in (0, STEP_MS)]
        for number in range(arguments.warm_up + arguments.repeats):
            plans = plan_episodes(GAMES, run_seed=0, purpose="lock-step", iteration=number)
            plans, _ = algorithm.agent_mapper.assigned(plans, games[:1])
            row: dict[str, float] = {}
            for name, game in zip(("", "_slow"), games, strict=True):
                seconds = []
                for in_rounds in (False, True):
                    algorithm.push_weights()  # The engine begins with an empty cache.
                    client = Uneven(EngineClient(engines), REPLY)
                    began = time.perf_counter()
                    if in_rounds:
                        asyncio.run(lock_step(client, runner.chat("player"), plans, game))
                    else:
                        ours(runner, client, plans, game)
                    seconds.append(time.perf_counter() - began)
                    client.close()
                    if row.setdefault("tokens", client.tokens) != client.tokens:
                        raise RuntimeError(f"{client.tokens} tokens in place of {row['tokens']}")
                row |= {f"ours{name}_s": seconds[0], f"lock_step{name}_s": seconds[1]}
                row[f"ratio{name}"] = seconds[1] / seconds[0]
            if number >= arguments.warm_up:
                repeats.append(row)
                print("  ".join(f"{key} {value:.2f}" for key, value in row.items()), flush=True)
    return repeats


def make_config(threads: int) -> Any:
    """The configuration, as it would stand in YAML."""
    from iteration import CONTEXT, SHAPE

    from rllib_lmgame.algorithms.ppo import LMGamePPOConfig

    return LMGamePPOConfig().update_from_dict(
        {
            "env": "lock_step:Slow",
            "env_config": {"turns": TURNS},
            "language_model": {
                "model": "tiny",
                "tiny": SHAPE,
                "format_instructions": False,
                "turn_suffix": "",
                "reply_prefill": "<answer>",
                "max_tokens_per_turn": REPLY,
                "context_length": CONTEXT,
                "dtype": "float32",
            },
            "inference": {"engine": "vllm", "max_num_seqs": 2 * GAMES, "num_threads": threads},
            "text_rollouts": {"episodes_per_iteration": GAMES},
            "num_env_runners": 0,
            "num_envs_per_env_runner": GAMES,
        }
    )


if __name__ == "__main__":
    main()
