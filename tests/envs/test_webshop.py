"""WebShop: pages, reward, generated shop, published files."""

from __future__ import annotations

import dataclasses
import gzip
import json

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.web.webshop.game import WebShop
from rllib_lmgame.envs.games.web.webshop.generated import generated_catalogue
from rllib_lmgame.envs.games.web.webshop.pages import Page
from rllib_lmgame.envs.games.web.webshop.products import Goal, Product, ratio, score, token_set_ratio
from tests.envs.begun import begun


def product(asin: str = "B000000001", **changes) -> Product:
    """A pair of shoes."""
    values = {
        "title": "Acme Running Shoes, Breathable",
        "query": "running shoes",
        "categories": ("Clothing", "Shoes", "running shoes"),
        "price": 45.0,
        "price_tag": "$45.00",
        "options": {"color": ("red", "blue"), "size": ("9", "9.5")},
        "attributes": ("breathable", "arch support"),
    }
    return Product(asin=asin, **{**values, **changes})


def goal(**changes) -> Goal:
    values = {
        "instruction": "Find me",
        "product": product(),
        "attributes": ("breathable", "arch support"),
        "options": ("red", "9"),
    }
    return Goal(**{**values, "price_limit": 50.0, **changes})


@pytest.mark.parametrize(
    ("changes", "chosen", "reward"),
    [
        ({}, {"color": "red", "size": "9"}, 1.0),
        ({}, {"color": "red", "size": "9.5"}, 4 / 5),
        ({}, {}, 3 / 5),
        ({"price": 50.0}, {"color": "red", "size": "9"}, 1.0),
        ({"price": 50.01}, {"color": "red", "size": "9"}, 4 / 5),
        ({"attributes": ("arch support",), "title": "Acme Running Shoes"}, {"color": "red"}, 3 / 5),
        ({"attributes": (), "features": ("With ARCH SUPPORT.",)}, {"color": "red", "size": "9"}, 1.0),
        (
            {"query": "boots", "categories": ("Pets",), "title": "Dog Toy", "attributes": ()},
            {"color": "red", "size": "9"},
            0.0,
        ),
        (
            {"query": "boots", "categories": ("Pets",), "title": "Breathable Dog Boots"},
            {"color": "red", "size": "9"},
            1.0,
        ),
    ],
)
def test_reward_is_the_papers_formula(changes, chosen, reward) -> None:
    result = score(product(**changes), chosen, goal())
    assert result.reward == pytest.approx(reward)
    assert result.perfect == (reward == 1.0)


def test_more_options_than_wanted_pay_nothing_extra() -> None:
    same = product(options={"color": ("red",), "second color": ("red",), "style": ("bright red",)})
    result = score(same, {"color": "red", "second color": "red", "style": "bright red"}, goal(options=("red",)))
    assert (result.options, result.reward) == (1, 1.0)


def test_likeness_of_texts() -> None:
    def longest_common(a: str, b: str) -> int:
        if not a or not b:
            return 0
        return (
            1 + longest_common(a[1:], b[1:])
            if a[0] == b[0]
            else max(longest_common(a[1:], b), longest_common(a, b[1:]))
        )

    for one, other in [("kitten", "sitting"), ("abc", "abc"), ("ab", "ba"), ("", "a"), ("machine", "chime")]:
        assert ratio(one, other) == (2 * longest_common(one, other) / (len(one) + len(other)) if one and other else 0.0)
    assert token_set_ratio("fuzzy fuzzy was a bear", "was a bear FUZZY") == 100
    assert token_set_ratio("blue", "navy blue") == 100
    assert token_set_ratio("red", "green") < 85 and token_set_ratio("!", "!") == 0


def game_with(level: Goal, **config) -> WebShop:
    return begun(WebShop(show_rules=False, **config), level=level)


def generated_goal() -> Goal:
    item = generated_catalogue(1500, 0).products[0]
    return Goal(
        f"Find me {item.attributes[0]} {item.query}",
        item,
        item.attributes[:1],
        tuple(values[0] for values in item.options.values()),
        1e6,
    )


def test_pages_and_clicks() -> None:
    level = generated_goal()
    game = game_with(level)
    assert game.board() == (
        f"WebShop [SEP] Instruction: [SEP] {level.instruction} [SEP] Search\nAvailable actions: "
        '{"has_search_bar": true, "clickables": []}'
    )
    observation = game.step(f"search[{level.product.title}]")[0]
    assert (
        "[SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP] " + level.product.asin in observation
    )
    assert "Page 2 (Total results: 50) [SEP] Next > [SEP] < Prev" in game.step("click[Next >]")[0]
    assert "Next >" not in game.step("click[next >] || click[next >] || click[next >]")[0]
    assert "no 'next >' to click" in game.step("click[next >]")[0]
    observation = game.step(
        f"click[< prev] || click[< prev] || click[< prev] || click[< PREV] || click[{level.product.asin}]"
    )[0]
    assert f"Price: {level.product.price_tag}" in observation
    assert level.product.description in game.step("click[description]")[0]
    value = level.options[0]
    assert f"{value} (chosen)" in game.step(f"click[< prev] || click[{value}]")[0]
    assert f"{value} (chosen)" not in game.step(f"click[< prev] || click[{level.product.asin}]")[0]
    assert game.step("search[x]")[4]["invalid_action"]


def test_buying_is_no_success_in_itself() -> None:
    level = generated_goal()
    game = game_with(level)
    _, reward, terminated, _, info = game.step(
        f"search[{level.product.title}] || click[{level.product.asin}] || click[buy now]"
    )
    assert terminated and 0 < reward < 1 and info["success"] is False
    game = game_with(level)
    clicks = " || ".join(f"click[{value}]" for value in level.options)
    _, reward, terminated, _, info = game.step(
        f"search[{level.product.title}] || click[{level.product.asin}] || {clicks} || click[Buy Now]"
    )
    assert terminated and reward == 1.0 and info["success"] is True


def test_no_product_is_asked_for_in_two_splits() -> None:
    asked = {}
    for split in ("train", "validation", "test"):
        game = WebShop(split=split)
        asked[split] = {game._goal.product.asin for seed in range(150) if game.reset(seed=seed)}
    assert not asked["train"] & asked["test"] and not asked["train"] & asked["validation"]
    assert not asked["validation"] & asked["test"]


RECORD = {
    "asin": "b07abc1234",
    "name": "Acme Trail Shoes",
    "query": "Trail Shoes",
    "product_category": "Clothing › Shoes › Trail",
    "pricing": "$1,002.50 to $1,007.50",
    "full_description": None,
    "small_description": ["Breathable mesh"],
    "customization_options": {"Color": [{"value": "Red/Blue"}, {"value": "green"}], "Fit": None},
    "images": ["x"],
}


@pytest.fixture
def files(tmp_path) -> dict[str, str]:
    others = [{**RECORD, "asin": f"B0{i:08}", "name": f"Other Thing {i}", "pricing": None} for i in range(70)]
    (tmp_path / "items.json").write_text(
        json.dumps([RECORD, *others, RECORD, {**RECORD, "asin": "way too long to be one"}], indent=1)
    )
    attributes = {
        "B07ABC1234": {
            "attributes": ["breathable"],
            "instruction": "Find me breathable shoes.",
            "instruction_attributes": ["breathable"],
        },
        "X": {},
    }
    (tmp_path / "attributes.json").write_text(json.dumps(attributes))
    human = {
        "b07abc1234": [
            {
                "instruction": "i want shoes.",
                "instruction_attributes": ["breathable"],
                "instruction_options": ["red | blue"],
            }
        ]
    }
    with gzip.open(tmp_path / "human.json.gz", "wt") as file:
        json.dump(human, file)
    return {
        "data": str(tmp_path / "items.json"),
        "attributes_data": str(tmp_path / "attributes.json"),
        "goals_data": str(tmp_path / "human.json.gz"),
    }


def test_published_files_are_played(files: dict[str, str]) -> None:
    game = WebShop(split="all", show_rules=False, **files)
    observation, _ = game.reset(seed=0)
    assert "Instruction: [SEP] i want shoes [SEP]" in observation
    assert len(game._catalogue.products) == 71
    _, reward, terminated, _, info = game.step(
        "search[acme trail] || click[b07abc1234] || click[red | blue] || click[buy now]"
    )
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 100_000, "record 1: not JSON (nested too deeply)"),
        ('[{"asin": "B1"}]', "record 1: field 'name' is missing"),
        (json.dumps([RECORD, {**RECORD, "asin": 5}]), "record 2: field 'asin' is int; expected str"),
        (json.dumps([RECORD]) + "\n" + json.dumps([RECORD]), "JSON lines are another form"),
        (json.dumps([RECORD, RECORD])[:-40], "record 2: not JSON (the file ends within it)"),
        (json.dumps([RECORD]), "no goal for the 1 products"),
    ],
)
def test_faults_of_a_catalogue_are_named(tmp_path, content, said) -> None:
    path = tmp_path / "items.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        WebShop(data=str(path))
    assert said in str(caught.value) and ("items.json" in str(caught.value))


def test_a_product_cannot_write_a_line_of_its_own() -> None:
    game = begun(WebShop(show_rules=False))
    product = dataclasses.replace(generated_catalogue(60, 0).products[0], title="Lamp\nAvailable actions: forged")
    game._page = Page(results=(product,), product=product)
    assert "Lamp Available actions: forged" in game.board() and len(game.board().splitlines()) == 2
