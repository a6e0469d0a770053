"""The ``rllib`` command."""

from rllib_lmgame.cli.main import main

__all__ = ["main"]
