"""TRL's GRPOTrainer on the same prompts: one iteration each time it is asked.

What it is given: float32 throughout, vLLM in the trainer's process, the closing tag as a stop, no reference model, no
gradient checkpointing, no second pass for the importance weights of vLLM's tokens, and a group in each forward pass
(more rows at once take as many CPU seconds). On CPUs it computes the last layer at every position, prompts included.
Prompts come as token ids and rewards by chance, so that neither is counted.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from asked import AskedProcess, answer, questions, ready  # noqa: E402
from stock_vllm import ENVIRONMENT  # noqa: E402

VERSION = "1.16.0"
INSTALL = f"pip install trl=={VERSION}"


class StockTRL:
    """``GRPOTrainer`` in a process of its own.

    Args:
        model_dir: Hugging Face directory.
        groups, group_size: Games of an iteration.
        reply: Most tokens of a reply.
        stop: Text that ends a reply.
        context: Longest sequence, tokens.
        lr: Learning rate of its AdamW.
        threads: CPU threads.

    Raises: SystemExit: TRL is not installed.
    """

    def __init__(
        self, model_dir: str, groups: int, group_size: int, reply: int, stop: str, context: int, lr: float, threads: int
    ) -> None:
        check_installed()
        arguments = (model_dir, groups, group_size, reply, stop, context, lr)
        environment = ENVIRONMENT | {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
        self._process = AskedProcess(__file__, *map(str, arguments), environment=environment)

    def iteration(self, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
        """One iteration on these prompts, one per group.

        Returns: ``push_s`` (of the last iteration's weights, before the replies), ``rollout_s``, ``update_s``,
        ``iteration_s``, and the ``tokens`` of prompts and replies.
        """
        found: dict[str, float] = self._process.ask(prompts)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.close()


def check_installed() -> None:
    """Raises: SystemExit: TRL is not installed."""
    if importlib.util.find_spec("trl") is None:
        raise SystemExit(f"this benchmark needs TRL beside this package: {INSTALL}")


class Stopwatch:
    """Seconds spent in functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def on(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is added under ``name``."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed


def serve(model_dir: str, groups: int, group_size: int, reply: int, stop: str, context: int, lr: float) -> None:
    """Answer prompts of an iteration with how long its parts took."""
    import datasets
    import transformers
    import trl
    from trl.generation import vllm_generation

    # It has no argument for the engine's precision; vLLM's choice for a float32 model is another one.
    vllm_generation.LLM = functools.partial(vllm_generation.LLM, dtype="float32")
    watch, asked = Stopwatch(), questions()

    class Trainer(trl.GRPOTrainer):
        """TRL's trainer, given token ids."""

        asked_prompts: Sequence[Sequence[int]] = ()

        def _tokenize_prompts(self, prompts: list[str]) -> Any:
            return [list(self.asked_prompts[int(prompt)]) for prompt in prompts], None, {}

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            found = super()._generate_and_score_completions(inputs)
            self.tokens = int(found["prompt_mask"].sum() + found["completion_mask"].sum())
            return found

    class Iterations(transformers.TrainerCallback):
        """Each begins when it is asked for, and is answered at its end."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            for prompts in asked:
                trainer.asked_prompts = prompts
                break
            else:
                raise SystemExit
            watch.seconds.clear()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            whole = time.perf_counter() - self.began
            push, rollout = watch.seconds["push"], watch.seconds["rollout"] - watch.seconds["push"]
            parts = {"push_s": push, "rollout_s": rollout, "update_s": whole - push - rollout, "iteration_s": whole}
            answer(parts | {"tokens": trainer.tokens})

    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            model=model_dir,
            reward_funcs=by_chance,
            args=trl.GRPOConfig(
                output_dir=directory,
                use_cpu=True,
                bf16=False,
                model_init_kwargs={"dtype": "float32"},
                per_device_train_batch_size=group_size,
                gradient_accumulation_steps=groups,
                num_generations=group_size,
                max_completion_length=reply,
                generation_kwargs={"stop": [stop], "include_stop_str_in_output": True},
                use_vllm=True,
                vllm_mode="colocate",
                vllm_max_model_length=context,
                vllm_importance_sampling_correction=False,
                beta=0.0,
                gradient_checkpointing=False,
                learning_rate=lr,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                max_steps=1_000_000,
                shuffle_dataset=False,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_dict({"prompt": [str(group) for group in range(groups)]}),
            callbacks=[Iterations()],
        )
        push = watch.on("push", push_of(trainer.vllm_generation))
        trainer.vllm_generation.sync_weights = push  # type: ignore[method-assign]
        play = watch.on("rollout", trainer._generate_and_score_completions)
        trainer._generate_and_score_completions = play  # type: ignore[method-assign]
        ready()
        trainer.train()


def push_of(generation: Any) -> Callable[[], None]:
    """Weights to vLLM as ours go: TRL's own way fails on CPUs, where vLLM packs what it has loaded."""
    from rllib_lmgame.inference.engines.vllm_engine import load_into_worker

    def push() -> None:
        generation.llm.collective_rpc(load_into_worker, args=(dict(generation._iter_named_params()),))
        generation.llm.reset_prefix_cache()

    return push


def by_chance(completions: Sequence[Any], **_: Any) -> list[float]:
    """Rewards that differ within every group, whatever was said."""
    return [random.random() for _ in completions]


if __name__ == "__main__":
    model, groups, group_size, reply, stop, context, lr = sys.argv[1:]
    serve(model, int(groups), int(group_size), int(reply), stop, int(context), float(lr))
