"""Modules that stood elsewhere in the version before."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from rllib_lmgame.envs.registry import game_spec, load_factory
from rllib_lmgame.errors import ConfigError, MissingDependencyError
from rllib_lmgame.imports import import_path
from rllib_lmgame.moved import MOVED, new_place


@pytest.mark.parametrize("old", MOVED)
def test_what_has_moved_is_where_it_is_said_to_be(old: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"rllib_lmgame.{old}")
    now = new_place(f"rllib_lmgame.{old}")
    assert now is not None and importlib.util.find_spec(now) is not None


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("rllib_lmgame.envs.sokoban", "rllib_lmgame.envs.games.grids.sokoban"),
        ("rllib_lmgame.envs.web_navigation.game", "rllib_lmgame.envs.games.web.web_navigation.game"),
        ("rllib_lmgame.envs.word_problems", "rllib_lmgame.envs.games.mathematics.word_problems"),
        ("rllib_lmgame.envs.sandbox.programs", "rllib_lmgame.sandbox.programs"),
        ("rllib_lmgame.envs.no_such", None),
        ("rllib_lmgame.envs", None),
        ("rllib_lmgame.sokoban", None),
        ("somebody.envs.sokoban", None),
    ],
)
def test_the_new_place_of_a_module(old: str, now: str | None) -> None:
    assert new_place(old) == now


def test_who_names_the_old_place_is_told_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"; it is rllib_lmgame\.inference\.engines\.transformers_engine now"):
        import_path("rllib_lmgame.inference.transformers_engine:TransformersEngine", "inference.engine")
    with pytest.raises(ConfigError, match=r"; it is rllib_lmgame\.sandbox\.programs now"):
        import_path("rllib_lmgame.envs.sandbox.programs:run_program", "x")
    with pytest.raises(ConfigError, match=r"; it is rllib_lmgame\.envs\.games\.grids\.sokoban now"):
        load_factory(game_spec("rllib_lmgame.envs.sokoban:Sokoban"))
    (tmp_path / "their_old_game.py").write_text("from rllib_lmgame.envs.splits import split_few\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = (
        r"their_old_game\.py:1 imports 'rllib_lmgame\.envs\.splits', which is rllib_lmgame\.envs\.contract\.splits now"
    )
    with pytest.raises(MissingDependencyError, match=said):
        load_factory(game_spec("their_old_game:Game"))
    with pytest.raises(
        ConfigError, match=r"rllib_lmgame\.envs\.splits.*it is rllib_lmgame\.envs\.contract\.splits now"
    ):
        import_path("their_old_game:Player", "config.policies.x.player")
