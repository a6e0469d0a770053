"""Language models that learn to play text games, on Ray RLlib, vLLM and DeepSpeed."""

__version__ = "0.1.0"
