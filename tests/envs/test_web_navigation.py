"""WebNavigation: the small site, its tasks and their checks, reading of replies."""

from __future__ import annotations

import random

import pytest

from rllib_lmgame.envs.contract.base import InvalidAction
from rllib_lmgame.envs.games.web.web_navigation.actions import Action, read_action
from rllib_lmgame.envs.games.web.web_navigation.game import WebNavigation
from rllib_lmgame.envs.synthetic.web_site.site import copy_site
from rllib_lmgame.envs.synthetic.web_site.tasks import FAMILIES


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("click [12]", Action("click", 12)),
        ("Click[ 12 ]", Action("click", 12)),
        ("type [5] [two words]", Action("type", 5, "two words")),
        ("type [5] [a [b] c] [1]", Action("type", 5, "a [b] c", True)),
        ("type [5] [x][0]", Action("type", 5, "x")),
        ("type [5] []", Action("type", 5, "")),
        ("type [5] [[1]", Action("type", 5, "[1")),
        ("goto [/shop]", Action("goto", text="/shop")),
        ("goto /shop", Action("goto", text="/shop")),
        ("go_back", Action("go_back")),
        ("scroll [Down]", Action("scroll", text="down")),
        ("stop [42 [m]]", Action("stop", text="42 [m]")),
        ("stop", Action("stop")),
    ],
)
def test_replies_that_are_read(reply: str, action: Action) -> None:
    assert read_action(reply) == action


@pytest.mark.parametrize(
    "reply",
    [
        "", "click", "click 12", "click [-1]", "click [٣]", "click [999999]", "type [5]", "type [x] [y]", "goto []",
        "scroll [left]", "hover [3]", "go_back [1]",
    ],
)  # fmt: skip
def test_replies_that_are_not(reply: str) -> None:
    with pytest.raises(InvalidAction, match=r"click \[id\]"):
        read_action(reply)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_solved_and_checked(family: str) -> None:
    """The expert's way succeeds; stopping at once, a wrong answer, and one change too many do not."""
    game = WebNavigation(families=[family], show_rules=False, split="all")
    for seed in range(12):
        game.reset(seed=seed)
        task = game._task
        assert not task.solved(game._site, task.answer or "") or task.change is None
        done = False
        while not done:
            action = game.expert_action() or ""
            if action.startswith("stop"):
                assert task.answer is None or not task.solved(game._site, "something else")
                spoilt = copy_site(game._site)
                spoilt.shop.cart["Copper Kettle"] = 77
                assert not task.solved(spoilt, task.answer or "")
            _, reward, done, truncated, info = game.step(action)
            assert not truncated and not info["invalid_action"]
        assert reward == 1.0 and info["success"], seed


def test_the_expert_finds_the_way_from_any_page_that_was_not_changed() -> None:
    game = WebNavigation(show_rules=False, max_turns=60)
    chance = random.Random(0)
    for seed in range(60):
        game.reset(seed=seed)
        for _ in range(6):
            page = game._browser.page
            links = [number for number, element in enumerate(page.elements, start=1) if element.role == "link"]
            game.step(f"click [{chance.choice(links)}]")
        done = False
        while not done:
            _, reward, done, _, _ = game.step(game.expert_action() or "")
        assert reward == 1.0, game._task.intent


def test_the_task_is_not_done_before_stop_nor_by_running_out_of_turns() -> None:
    game = WebNavigation(families=["cms_publish"], max_turns=5)
    game.reset(seed=1)
    for _ in range(3):
        game.step(game.expert_action() or "")
    assert (game.expert_action() or "").startswith("stop")
    game.step("scroll [down]")
    _, reward, terminated, truncated, info = game.step("scroll [down]")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


def test_pages_read_like_webarena() -> None:
    game = WebNavigation(families=["shop_order"], show_rules=False, split="all")
    observation, _ = game.reset(seed=0)
    assert observation.splitlines()[1:5] == [
        "URL: /",
        "[1] RootWebArea 'Home'",
        "\t[2] link 'Home'",
        "\t[3] link 'Shop'",
    ]
    game.step("click [3]")
    assert "\t[8] textbox 'Search products' value: 'kettle'" in game.step("type [8] [kettle]")[0]
    assert game.step("type [8] [zzz] [1]")[0].endswith(
        "[7] heading 'Search results'\n\t[8] StaticText '0 products found'"
    )
    assert "URL: /shop\n" in game.step("go_back")[0]
    assert "There is no such page." in game.step("goto [/shop/product/99999999999]")[0]
    assert game.step("goto [http://example.org/]")[4]["invalid_action"]
    assert game.step("goto [//example.org/x]")[4]["invalid_action"]
    assert not game.step("goto [/]")[4]["invalid_action"]
    assert "there is no element [99]" in game.step("click [99]")[0]
    assert "[1] is a RootWebArea" in game.step("type [1] [x]")[0]
