"""Functions to be programmed, as families whose parameters are drawn."""
