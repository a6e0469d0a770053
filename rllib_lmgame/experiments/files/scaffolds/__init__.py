"""The game that ``rllib init game`` begins with, which docs/writing-a-game.md shows."""
