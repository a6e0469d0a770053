"""Losses of tokens; torch is imported where they are computed, so that configurations are checked without it."""
