"""vLLM's own offline interface on the same requests: the loop of trainers that call ``LLM.generate`` once per turn of
all games.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asked import AskedProcess, answer, questions, ready

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.records import Trajectory

Wave = list[tuple[int, list[int], int, bool]]
"""One turn of all games: game, new prompt tokens, length of the reply, whether the conversation starts anew."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""Of a process with vLLM on CPUs, whose threads ``OMP_NUM_THREADS`` counts."""


class StockVLLM:
    """vLLM's ``LLM`` with its own defaults, in a process of its own.

    Args:
        model_dir: Hugging Face directory.
        context: Longest sequence, tokens.
        dtype: Of weights and cache.
    """

    def __init__(self, model_dir: str, context: int, dtype: str = "float32") -> None:
        self._process = AskedProcess(__file__, model_dir, str(context), dtype, environment=ENVIRONMENT)

    def seconds(self, trajectories: Sequence[Trajectory]) -> float:
        """Seconds for the requests of ``trajectories``, turn by turn, begun with an empty cache."""
        return float(self._process.ask(waves_of(trajectories)))

    def close(self) -> None:
        """End the process."""
        self._process.close()


def waves_of(trajectories: Sequence[Trajectory]) -> list[Wave]:
    """The requests of ``trajectories``, turn by turn."""
    longest = max(len(trajectory.turns) for trajectory in trajectories)
    return [
        [
            (game, turn.prompt_ids.tolist(), len(turn.response_ids), bool(turn.new_row))
            for game, trajectory in enumerate(trajectories)
            for turn in trajectory.turns[number : number + 1]
        ]
        for number in range(longest)
    ]


def serve(model_dir: str, context: int, dtype: str) -> None:
    """Answer waves with how long they took."""
    from vllm import LLM

    llm = LLM(
        model=model_dir,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=context,
        max_num_seqs=256,
        disable_log_stats=True,
    )
    ready()
    for waves in questions():
        llm.reset_prefix_cache()
        answer(play(llm, waves))


def play(llm: Any, waves: Sequence[Wave]) -> float:
    """Seconds ``llm`` takes for ``waves``; every prompt continues the replies sampled here."""
    from vllm import SamplingParams

    prompts: dict[int, list[int]] = {}
    began = time.perf_counter()
    for wave in waves:
        for game, new, _, fresh in wave:
            prompts[game] = ([] if fresh else prompts[game]) + new
        requests: list[Any] = [{"prompt_token_ids": prompts[game]} for game, *_ in wave]
        params = [
            SamplingParams(max_tokens=length, ignore_eos=True, logprobs=0, detokenize=False) for _, _, length, _ in wave
        ]
        for (game, *_), output in zip(wave, llm.generate(requests, params, use_tqdm=False), strict=True):
            prompts[game] = prompts[game] + list(output.outputs[0].token_ids)
    return time.perf_counter() - began


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
