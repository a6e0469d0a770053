"""Language models that learn to play text games, on Ray RLlib, vLLM and DeepSpeed.

Importing the package loads neither torch nor Ray, vLLM or DeepSpeed. ``gymnasium.make("rllib_lmgame:lmgame/...")``
makes a game for one player.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rllib_lmgame.envs import make

__all__ = ["__version__", "make"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """``make``, which Gymnasium comes with; the command's help needs neither."""
    if name == "make":
        from rllib_lmgame.envs import make

        return make
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if "gymnasium" in sys.modules:
    importlib.import_module("rllib_lmgame.envs")
