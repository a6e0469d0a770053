"""Chat formats, models and players. ``policies`` at the top of the repository is a link to this package."""

if __name__ != "rllib_lmgame.policies":
    import importlib
    import sys

    sys.modules[__name__] = importlib.import_module("rllib_lmgame.policies")
