"""vLLM's own offline interface on the same requests: the loop of trainers that call ``LLM.generate`` once per turn of
all games.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_lmgame.rollouts.records import Trajectory

Wave = list[tuple[int, list[int], int, bool]]
"""One turn of all games: game, new prompt tokens, length of the reply, whether the conversation starts anew."""


class StockVLLM:
    """vLLM's ``LLM`` with its own defaults, in a process of its own.

    Args:
        model_dir: Hugging Face directory.
        context: Longest sequence, tokens.
    """

    def __init__(self, model_dir: str, context: int) -> None:
        environment = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [sys.executable, os.path.abspath(__file__), model_dir, str(context)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def seconds(self, trajectories: Sequence[Trajectory]) -> float:
        """Seconds for the requests of ``trajectories``, turn by turn, begun with an empty cache."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(waves_of(trajectories)) + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> str:
        """The next line of ours; vLLM prints there as well."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(_MARK):
                return line[len(_MARK) :]
        raise RuntimeError(f"vLLM's process ended with {self._process.wait()}")


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


_MARK = "stock_vllm: "


def serve(model_dir: str, context: int) -> None:
    """Read waves from the standard input, a line each time, and print how long they took."""
    from vllm import LLM

    llm = LLM(
        model=model_dir,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=context,
        max_num_seqs=256,
        disable_log_stats=True,
    )
    print(f"\n{_MARK}ready", flush=True)
    for line in sys.stdin:
        llm.reset_prefix_cache()
        print(f"\n{_MARK}{play(llm, json.loads(line))}", flush=True)


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
    serve(sys.argv[1], int(sys.argv[2]))
