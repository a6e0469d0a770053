"""BabyAI in text, on the engine of ``minigrid``."""
