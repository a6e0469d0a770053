"""What the same work costs without the framework: the engine alone, the games alone, the update in plain PyTorch."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rllib_lmgame.inference.protocol import Generation, GenerationRequest, SamplingSpec, StopReason
from rllib_lmgame.inference.serving.client import EngineClient
from rllib_lmgame.rollouts.records import Trajectory, Turn

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
    from rllib_lmgame.rollouts.plans import EpisodePlan
    from rllib_lmgame.rollouts.records import PlaySettings

_replays = itertools.count()


# -- the engine alone -----------------------------------------------------------------------------------------------


def replay_s(engines: Sequence[str], trajectories: Sequence[Trajectory], temperature: float = 1.0) -> float:
    """Seconds the engine takes for the requests of ``trajectories`` when one client sends them without any game.

    Turns of an episode follow each other, episodes run side by side. Every prompt has as many tokens as it had, every
    reply is made as long as it was, and a prompt continues the replies sampled here, so that the engine finds as much
    in its prefix cache.
    """
    client = EngineClient(engines)
    number = next(_replays)

    async def episode(index: int, trajectory: Trajectory) -> None:
        prompt: list[int] = []
        for position, turn in enumerate(trajectory.turns):
            prompt = (prompt if not turn.new_row else []) + turn.prompt_ids.tolist()
            sampling = SamplingSpec(len(turn.response_ids), temperature)
            reply = await client.generate(GenerationRequest(f"replay-{number}/{index}/{position}", prompt, sampling))
            if reply.error is not None:
                raise RuntimeError(reply.error)
            prompt = prompt + reply.response_ids.tolist()

    async def all_episodes() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(episode(i, t) for i, t in enumerate(trajectories)))
        return time.perf_counter() - began

    seconds = asyncio.run(all_episodes())
    client.close()
    return seconds


# -- prompts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromptTokens:
    """Prompt tokens of a rollout.

    Attributes:
        sent: Of all prompts.
        unique: Different prefixes among the prompts, those that end inside an earlier reply left out: what a cache of
            single tokens that never forgets would compute.
        unique_blocks: The same for a cache that shares whole blocks only.
    """

    sent: int
    unique: int
    unique_blocks: int


def count_prompt_tokens(trajectories: Sequence[Trajectory], block: int) -> PromptTokens:
    """Count what ``trajectories`` sent, turn by turn over all episodes.

    Args:
        trajectories: Of one rollout, begun with an empty cache.
        block: Tokens of a cache block.
    """
    sent = sum(len(prompt) for wave in _waves(trajectories) for prompt, _ in wave)
    return PromptTokens(sent, _computed(trajectories, 1), _computed(trajectories, block))


def _computed(trajectories: Sequence[Trajectory], block: int) -> int:
    """Prompt tokens that a cache of whole blocks does not spare. The last prompt token is always computed, the last of
    a reply never.
    """
    cached: set[int] = set()
    computed = 0
    for wave in _waves(trajectories):
        for prompt, reply in wave:
            chain = _block_hashes(prompt + reply[:-1], block)
            usable = (len(prompt) - 1) // block
            hits = next((i for i, key in enumerate(chain[:usable]) if key not in cached), usable)
            computed += len(prompt) - hits * block
            cached.update(chain)
    return computed


def _waves(trajectories: Sequence[Trajectory]) -> list[list[tuple[list[int], list[int]]]]:
    """Prompt and reply of every episode's n-th turn, for every n."""
    waves: list[list[tuple[list[int], list[int]]]] = [[] for _ in range(max(len(t.turns) for t in trajectories))]
    for trajectory in trajectories:
        prompt: list[int] = []
        for position, turn in enumerate(trajectory.turns):
            prompt = (prompt if not turn.new_row else []) + turn.prompt_ids.tolist()
            reply = turn.response_ids.tolist()
            waves[position].append((prompt, reply))
            prompt = prompt + reply
    return waves


def _block_hashes(ids: list[int], block: int) -> list[int]:
    """A hash per whole block, of everything up to its end."""
    hashes, last = [], 0
    for start in range(0, len(ids) - block + 1, block):
        last = hash((last, *ids[start : start + block]))
        hashes.append(last)
    return hashes


# -- the games alone ------------------------------------------------------------------------------------------------


class InstantEngine:
    """Answers at once with recorded replies: what is left is the framework's own work.

    Args:
        turns: Replies, given out in turn.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = itertools.cycle(turns)

    async def generate(self, request: GenerationRequest, key: str | None = None) -> Generation:
        """A recorded reply, one turn of the event loop later."""
        await asyncio.sleep(0)
        turn = next(self._turns)
        return Generation(
            request.request_id, turn.response_ids, turn.rollout_logprobs, StopReason.EOS, turn.policy_version
        )

    def forget(self, key: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


def framework_us(
    runner: TextGameEnvRunner, plans: list[EpisodePlan], settings: PlaySettings, turns: Sequence[Turn], in_place: bool
) -> float:
    """CPU microseconds per turn of an env runner whose engine answers at once.

    Args:
        runner: The runner; left as it was.
        plans: Episodes to be played.
        settings: How.
        turns: Replies of the engine.
        in_place: Call the game directly, as games of the package are called; otherwise with a limit on its time, in a
            thread.
    """
    clients, runner._clients = runner._clients, {"player": InstantEngine(turns)}  # type: ignore[dict-item]
    try:
        for session in _sessions(runner, settings, len(plans)):
            session.trusted = in_place
            runner.hooks.release(settings.games[0], session)
        began = time.process_time()
        result = runner.play(plans, settings)
        seconds = time.process_time() - began
    finally:
        runner._clients = clients
    if result.error is not None or result.failures:
        raise result.error or RuntimeError(result.failures[0].message)
    return 1e6 * seconds / sum(summary.steps for summary in result.summaries)


def _sessions(runner: TextGameEnvRunner, settings: PlaySettings, count: int) -> list[Any]:
    from rllib_lmgame.envs.registry import make_session

    game = settings.games[0]
    return [runner.hooks.free_session(game) or make_session(game.env, dict(game.env_config)) for _ in range(count)]


# -- the update alone -----------------------------------------------------------------------------------------------


class PlainUpdate:
    """What no implementation of PPO can do without, in plain PyTorch, row by row (no padding), nothing around it.

    One pass without gradient, then one forward and backward pass of Transformers' own model, logits at reply tokens
    only, and an AdamW step.

    Args:
        model_dir: Hugging Face directory.
        numerics: ``bfloat16`` runs passes under autocast.
    """

    def __init__(self, model_dir: str, numerics: str = "float32") -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch, self._autocast = torch, numerics == "bfloat16"
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa")
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def seconds(self, trajectories: Sequence[Trajectory], before: bool = True) -> float:
        """Seconds of one update.

        Args:
            trajectories: What is trained on.
            before: Also evaluate without gradient what the policy was before, as several optimizer steps per update
                need it.
        """
        from rllib_lmgame.learners.data.batching import TokenBatch

        torch = self._torch
        batch = TokenBatch.from_trajectories(trajectories, max_row_tokens=1 << 20)
        data = [(torch.as_tensor(ids).long(), torch.as_tensor(at)) for ids, at, _ in batch.action_rows()]
        began = time.perf_counter()
        if before:
            with torch.no_grad():
                for ids, at in data:
                    self._logprobs(ids, at)
        self._optimizer.zero_grad()
        for ids, at in data:
            (-self._logprobs(ids, at).sum() / 5000).backward()
        self._optimizer.step()
        return time.perf_counter() - began

    def _logprobs(self, ids: Any, at: Any) -> Any:
        with self._torch.autocast("cpu", self._torch.bfloat16, enabled=self._autocast):
            hidden = self.model.model(ids[None], use_cache=False).last_hidden_state[0]
            return self.model.lm_head(hidden[at - 1]).log_softmax(-1).gather(-1, ids[at][:, None])
