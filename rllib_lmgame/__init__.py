"""Language models that learn to play text games, on Ray RLlib, vLLM and DeepSpeed.

Importing the package makes its games known (to Gymnasium those for one player, as soon as it is imported) and loads
neither torch nor Ray, vLLM or DeepSpeed.
"""

from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.gym_registration import register_with_gymnasium

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


register_with_gymnasium()
