"""Language models that learn to play text games, on Ray RLlib, vLLM and DeepSpeed.

Importing the package makes its games known (to Gymnasium those for one player) and loads neither torch nor Ray,
vLLM or DeepSpeed.
"""

from rllib_lmgame.envs import make

__all__ = ["__version__", "make"]

__version__ = "0.1.0"
