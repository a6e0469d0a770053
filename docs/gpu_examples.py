"""The GPU examples of ``tuned_examples/``: templates of ``gpu_examples/``, filled with the shapes here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).resolve().parent / "gpu_examples"


@dataclass(frozen=True)
class Shape:
    """A model on GPUs.

    Attributes:
        size: Of Qwen2.5.
        card: GB of each GPU.
        share: Of a card, for the engine on it.
        zero: DeepSpeed's ``zero_optimization``.
        apart: Engines over two GPUs each have half of the GPUs and learners the others. Otherwise each has both.
    """

    size: str
    gpus: int
    card: int
    share: float
    zero: str
    apart: bool = False

    @property
    def engines(self) -> int:
        return self.gpus // 4 if self.apart else self.gpus

    @property
    def learners(self) -> int:
        return self.gpus // 2 if self.apart else self.gpus

    @property
    def checkpointing(self) -> bool:
        return self.size != "0.5B"

    @property
    def offloaded(self) -> bool:
        return "offload_optimizer" in self.zero


STAGE_3 = "{stage: 3, overlap_comm: true, contiguous_gradients: true}"
SHAPES = {
    "0.5b-1gpu": Shape("0.5B", 1, 80, 0.35, "{stage: 1}"),
    "0.5b-8gpu": Shape("0.5B", 8, 48, 0.35, "{stage: 2}"),
    "3b-4gpu": Shape("3B", 4, 48, 0.30, STAGE_3),
    "7b-1gpu": Shape("7B", 1, 141, 0.30, "{stage: 2, offload_optimizer: {device: cpu, pin_memory: true}}"),
    "7b-4gpu": Shape("7B", 4, 141, 0.50, STAGE_3),
    "7b-8gpu": Shape("7B", 8, 80, 0.85, STAGE_3, apart=True),
}
CARDS = {48: "L40", 141: "H200"}
"""Whose memory that is, where the size alone tells little."""
_FOUR = ("0.5b-1gpu", "0.5b-8gpu", "7b-1gpu", "7b-8gpu")
RECIPES: dict[str, tuple[str, dict[str, int]]] = {
    "sokoban": ("", dict.fromkeys(SHAPES, 0)),
    "sokoban-grpo": ("", dict.fromkeys(_FOUR, 0) | {"7b-1gpu": 141}),
    "sokoban-lora": ("", {"0.5b-1gpu": 24, "7b-1gpu": 80}),
    "grl": ("tetris", dict.fromkeys(SHAPES, 0)),
    "agentgym": ("webnavigation", dict.fromkeys(_FOUR, 0)),
    "multiplayer": ("tictactoe-selfplay", dict.fromkeys(_FOUR, 0)),
}
"""Template -> the first of its experiments, if it has several, and its shapes with GB of a card, if they differ."""


def gpu_examples() -> dict[str, Callable[[], str]]:
    """File name -> its writer."""
    return {
        f"{recipe}-qwen2.5-{shape}.yaml": partial(example, recipe, shape)
        for recipe, (_, shapes) in RECIPES.items()
        for shape in shapes
    }


def example(recipe: str, shape: str) -> str:
    """The file of a recipe on a shape."""
    (first, cards), suffix = RECIPES[recipe], f"qwen2.5-{shape}"
    card = cards[shape] or SHAPES[shape].card
    values = {
        "recipe": recipe,
        "name": f"{recipe}-{suffix}",
        "suffix": suffix,
        "several": bool(first),
        "first": f"{first or recipe}-{suffix}",
        "lora": recipe.endswith("lora"),
        "shape": SHAPES[shape],
        "card": card,
        "named": CARDS.get(card),
    }
    found = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return found.get_template(f"{recipe}.jinja").render(values).strip() + "\n"
