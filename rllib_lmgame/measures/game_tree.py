"""The tree of a game by its id: what exact measures begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rllib_lmgame.envs.contract.sequence_form import MAX_STATES, GameTree, walked
from rllib_lmgame.envs.contract.tree import TextTreeGame
from rllib_lmgame.envs.registry import game_spec, load_factory, make_game


def game_tree(game: str, env_config: Mapping[str, Any] | None = None, max_states: int = MAX_STATES) -> GameTree:
    """Walk through a game, an id or import path of a :class:`~rllib_lmgame.envs.contract.TextTreeGame`.

    ``show_rules`` is off unless set, as in a session.

    Raises:
        ValueError: another kind of game, cut short by ``max_turns``, or with more than ``max_states``.
        GameError: the ``chance`` of a state is no list of pairs, or its probabilities do not sum to 1.
    """
    how = "write it as a TextTreeGame (docs/writing-a-game.md#a-game-with-exact-measures)"
    hidden = ValueError(f"{game} cannot be walked through: its states are hidden in the game; {how}")
    factory = load_factory(game_spec(game))
    if isinstance(factory, type) and not issubclass(factory, TextTreeGame):
        raise hidden  # It may take no show_rules.
    env = make_game(game, {"show_rules": False, **(env_config or {})})
    try:
        if not isinstance(env, TextTreeGame):
            raise hidden
        if env.options.max_turns is not None:
            raise ValueError(f"{game} cannot be walked through while max_turns may cut it short")
        return walked(env, max_states)
    finally:
        env.close()
