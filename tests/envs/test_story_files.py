"""TextNav's games from files: TextWorld's, ALFWorld's, and files that are none."""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textworld")

import textworld
from textworld.generator import compile_game, make_game

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.text_nav import story
from rllib_lmgame.envs.games.adapted.text_nav.game import TextNav

try:
    story.need_alfworld([story.StoryFile("game.tw-pddl", "game.tw-pddl")])
    needs_alfworld = pytest.mark.skipif(False, reason="")
except MissingDependencyError as missing:
    if os.environ.get("CI"):
        raise
    needs_alfworld = pytest.mark.skipif(True, reason=str(missing))

PROBLEM = """(define (problem small) (:domain alfred)
(:objects agent1 - agent countertop_bar_1 fridge_bar_1 - receptacle apple_bar_1 mug_bar_1 - object
  AppleType MugType - otype CounterTopType FridgeType - rtype loc0 loc1 loc2 - location)
(:init (= (total-cost) 0) (atLocation agent1 loc0)
  (receptacleType countertop_bar_1 CounterTopType) (receptacleAtLocation countertop_bar_1 loc1)
  (receptacleType fridge_bar_1 FridgeType) (receptacleAtLocation fridge_bar_1 loc2) (openable fridge_bar_1)
  (objectType apple_bar_1 AppleType) (pickupable apple_bar_1) (objectAtLocation apple_bar_1 loc1)
  (objectType mug_bar_1 MugType) (pickupable mug_bar_1) (objectAtLocation mug_bar_1 loc1)
  (inReceptacle apple_bar_1 countertop_bar_1) (inReceptacle mug_bar_1 countertop_bar_1)
  (canContain FridgeType AppleType) (canContain CounterTopType AppleType) (canContain CounterTopType MugType))
(:goal (exists (?r - receptacle ?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o AppleType) (receptacleType ?r FridgeType)))))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a game of tw-make: a story, and what TextWorld knows of it."""
    folder = tmp_path_factory.mktemp("made")
    options = textworld.GameOptions()
    options.nb_rooms, options.nb_objects, options.quest_length, options.seeds = 2, 3, 2, 1
    options.path = str(folder / "small.z8")
    compile_game(make_game(options), options)
    return folder


def alfworld_game(folder: Path) -> Path:
    """A small kitchen in a file as ALFWorld's are, with ALFWorld's own domain and grammar."""
    data = importlib.resources.files("alfworld") / "data"
    grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put a apple in fridge")
    game = {"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": PROBLEM}
    folder.mkdir(parents=True)
    (folder / "traj_data.json").write_text("{}")
    (folder / "game.tw-pddl").write_text(json.dumps({**game, "solvable": True, "walkthrough": None}))
    return folder / "game.tw-pddl"


def played(game: TextNav, *replies: str) -> list[tuple[str, float, dict[str, Any]]]:
    """Each turn of a game: ``replies``, then the expert's to the end."""
    turns, left, over = [], list(replies), False
    while not over:
        text, reward, done, cut, info = game.step(left.pop(0) if left else game.expert_action() or "")
        turns.append((text, reward, info))
        over = done or cut
    return turns


def test_a_story_of_tw_make_is_told_and_won(made: Path) -> None:
    game = TextNav(files=str(made), split="all", show_rules=False)
    first, info = game.reset(seed=0)
    assert first.count("attempt to go south") == 1 and "-= Spare Room =-" in first and "$" not in first
    assert "go south" in info["legal_actions"]
    turns = played(game, "xyzzy plugh")
    assert not turns[0][2]["invalid_action"] and "go south" in turns[0][2]["legal_actions"]
    assert "Errand: Welcome to TextWorld!" in turns[1][0] and "-= Studio =-" in turns[1][0]
    assert turns[-1][0].endswith("The errand is done.") and turns[-1][1] == 1.0 and turns[-1][2]["success"]
    assert [reward for _, reward, _ in turns[:-1]] == [0.0] * (len(turns) - 1)
    assert game.reset(seed=0)[0] == first
    game.close()


def test_the_json_file_alone_is_a_house(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "small.json", tmp_path / "alone.json")
    game = TextNav(files=str(tmp_path / "alone.json"), split="all", show_rules=False)
    text, _ = game.reset(seed=0)
    assert "The spare room (you are here)" in text
    assert played(game)[-1][2]["success"]
    _, reward, _, _, info = (game.reset(seed=0), game.step("dance"))[1]
    assert info["invalid_action"] and reward == -0.1


@needs_alfworld
def test_alfworlds_text_engine_plays_its_files(tmp_path: Path) -> None:
    game = TextNav(files=str(alfworld_game(tmp_path / "train" / "trial")), show_rules=False)
    first, info = game.reset(seed=0)
    assert "you see a countertop 1, and a fridge 1." in first and "Your task is to: put a apple in fridge." in first
    assert info["legal_actions"] == ("go to countertop 1", "go to fridge 1", "help", "inventory", "look")
    turns = played(game, "take apple 1 from fridge 1")
    assert turns[0][0].startswith("Nothing happens.") and "Errand: put a apple in fridge" in turns[0][0]
    assert turns[-1][1:2] == (1.0,) and turns[-1][2]["success"] and len(turns) == 6
    game.close()


@needs_alfworld
def test_alfworlds_folders_are_the_splits(tmp_path: Path) -> None:
    for folder in ("train", "valid_seen", "valid_unseen"):
        alfworld_game(tmp_path / "json_2.1.1" / folder / "trial")
    files = story.story_files(str(tmp_path))
    assert [(file.name.split("/")[1], file.split) for file in files] == [
        ("train", "train"),
        ("valid_seen", "validation"),
        ("valid_unseen", "test"),
    ]
    game = TextNav(files=str(tmp_path), split="test")
    for seed in range(3):
        game.reset(seed=seed)
        assert game.house._game.unwrapped._game_file == files[2].path
    game.close()


@needs_alfworld
def test_what_alfworld_leaves_out_is_left_out(tmp_path: Path) -> None:
    """As its ``AlfredTWEnv.collect_game_files`` does: parts it does not support, and games without a solution."""
    kept = alfworld_game(tmp_path / "pick_and_place_simple-Apple-None-Fridge-1" / "trial")
    alfworld_game(tmp_path / "pick_two_obj-AppleSliced-None-Fridge-1" / "trial")
    alfworld_game(tmp_path / "pick_and_place_with_movable_recep-Apple-Pan-Fridge-1" / "trial")
    unsolved = alfworld_game(tmp_path / "pick_heat_then_place_in_recep-Mug-None-Fridge-1" / "trial")
    unsolved.write_text(json.dumps({**json.loads(unsolved.read_text()), "solvable": False}))
    assert [file.path for file in story.story_files(str(tmp_path))] == [str(kept)]
    unsolved.write_text(kept.read_text() + "\n\n")
    assert [file.path for file in story.story_files(str(tmp_path))] == [str(kept), str(unsolved)]
    assert [file.path for file in story.story_files(str(kept))] == [str(kept)]


@pytest.mark.parametrize("size", [0, 40, 100, 200_000, -1])
def test_a_story_that_is_cut_short_or_altered_costs_an_episode(made: Path, tmp_path: Path, size: int) -> None:
    content = (made / "small.z8").read_bytes()
    altered = content[:70_000] + bytes([content[70_000] ^ 1]) + content[70_001:]
    (tmp_path / "small.z8").write_bytes(altered if size < 0 else content[:size])
    shutil.copy(made / "small.json", tmp_path)
    with pytest.raises(GameError, match=r"small.z8 is no game .* (header|of 383976 bytes|do not sum up)"):
        TextNav(files=str(tmp_path), split="all").reset(seed=0)


@needs_alfworld
def test_an_alfworld_file_that_is_cut_short_costs_an_episode(tmp_path: Path) -> None:
    file = alfworld_game(tmp_path / "trial")
    for content in (file.read_text()[:9000], "{}", json.dumps({**json.loads(file.read_text()), "pddl_problem": "("})):
        file.write_text(content)
        with pytest.raises(GameError, match=r"game.tw-pddl is no game"):
            TextNav(files=str(file), split="all").reset(seed=0)
