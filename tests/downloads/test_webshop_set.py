"""WebShop's published files: the sessions of its program, and a catalogue too large for memory."""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, quiet

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.downloads.fetch import fetch
from rllib_lmgame.envs.games.web.webshop import shelf
from rllib_lmgame.envs.games.web.webshop.game import WebShop, sessions_of
from rllib_lmgame.envs.games.web.webshop.generated import generated_catalogue
from rllib_lmgame.envs.games.web.webshop.shelf import FOLDER, Shelf, catalogue_of
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.options import GameConfig

COUNT = 1700


def records() -> list[dict[str, Any]]:
    """Products of the generated shop in the published form."""
    return [
        {
            "asin": product.asin,
            "name": product.title,
            "query": product.query,
            "product_category": " › ".join(product.categories),
            "pricing": product.price_tag,
            "full_description": product.description,
            "small_description": list(product.features),
            "customization_options": {
                name: [{"value": value} for value in values] for name, values in product.options.items()
            },
        }
        for product in generated_catalogue(COUNT, 0).products
    ]


@pytest.fixture(scope="module")
def published() -> dict[str, bytes]:
    products = records()
    human = {
        product["asin"]: [
            {"instruction": f"wish {n} for it.", "instruction_attributes": ["good"], "instruction_options": []},
            {"instruction": "left out", "instruction_attributes": [], "instruction_options": []},
        ]
        for n, product in enumerate(products)
    }
    attributes = {product["asin"]: {"attributes": ["good", "cheap"]} for product in products}
    written = {"items_shuffle.json": products, "items_ins_v2.json": attributes, "items_human_ins.json": human}
    return {name: json.dumps(content).encode() for name, content in written.items()}


@pytest.fixture
def webshop(hub: HubServer, published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["datasets/Yuxuan13/webshop_dataset"] = published
    hub.repositories["datasets/YWZBrandon/webshop-data"] = published
    fetch("webshop", report=quiet)


@pytest.mark.parametrize("large", [False, True])
def test_the_test_is_the_programs_first_500_goals(webshop: None, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    if large:
        monkeypatch.setattr(shelf, "LARGE", 1)
    shared = {"data": "data:webshop", "show_rules": False}
    game = WebShop(split="test", **shared)
    assert isinstance(game._catalogue, Shelf) is large
    order = list(range(COUNT))
    random.seed(233)  # As the published program shuffles its goals.
    random.shuffle(order)
    assert [goal.instruction for goal in game._catalogue.wishes] == [f"wish {n} for it" for n in order]
    splits = {"test": order[:500], "validation": order[500:1500], "train": order[1500:]}
    for split, wishes in splits.items():
        game, config = (
            WebShop(split=split, **shared),
            GameConfig(env="lmgame/WebShop-v0", env_config={"split": split, **shared}),
        )
        plans = evaluated_levels([config], len(wishes))  # Each once, in an order of the evaluation's own.
        seen = [int(game.reset(seed=plan.seed)[0].split("wish ")[1].split(" ")[0]) for plan in plans]
        assert sorted(seen) == sorted(wishes) and seen != wishes
    reply = f"search[{game._goal.product.title}] || click[{game._goal.product.asin.lower()}] || click[buy now]"
    assert game.step(reply)[1] == 1.0


def test_a_split_without_sessions_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="there are 900 wishes of people, and the train split begins with number 1500"
    ):
        sessions_of("train", 900)
    assert sessions_of("validation", 900) == range(500, 900)


def test_a_large_catalogue_is_searched_as_one_in_memory(
    webshop: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = [str(tmp_path / "data" / "webshop" / name) for name in ("items_shuffle.json", "items_ins_v2.json")]
    memory = catalogue_of(files[0], files[1], str(tmp_path / "data/webshop/items_human_ins.json"), None)
    monkeypatch.setattr(shelf, "LARGE", 1)
    disk = catalogue_of(files[0], files[1], str(tmp_path / "data/webshop/items_human_ins.json"), None)
    assert list(disk.products) == list(memory.products) and list(disk.wishes) == list(memory.wishes)
    same = 0
    for product in list(memory.products)[::40]:
        found = disk.search(product.title)
        assert 1 <= len(found) <= 50
        same += found[0].title == memory.search(product.title)[0].title
    assert same >= 40 and disk.search("") == disk.search("for the and") == disk.search('" OR ) *') == []


def test_an_index_is_made_once_and_again_for_other_files(
    webshop: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shelf, "LARGE", 1)
    WebShop(data="data:webshop")
    assert "once" in capsys.readouterr().err
    WebShop(data="data:webshop")
    assert capsys.readouterr().err == ""
    WebShop(data="data:webshop", num_products=COUNT - 1, split="test")
    made = sorted((tmp_path / "data" / FOLDER).glob("*.sqlite"))
    assert len(made) == 2 and not list((tmp_path / "data" / FOLDER).glob("*.part"))


def test_processes_wait_for_the_one_that_makes_the_index(
    webshop: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shelf, "LARGE", 1)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        found = pool.map(_first_wish, range(2))
    assert found[0] == found[1] and len(list((tmp_path / "data" / FOLDER).glob("*.sqlite"))) == 1


def _first_wish(number: int) -> str:
    return WebShop(data="data:webshop", split="test").reset(seed=0)[0]


def test_a_damaged_file_leaves_no_index(webshop: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shelf, "LARGE", 1)
    items = tmp_path / "items.json"
    items.write_text(json.dumps(records()[:70])[:-40])
    with pytest.raises(ConfigError, match=r"items\.json, record \d+: not JSON"):
        WebShop(data=str(items))
    assert not [path for path in (tmp_path / "data" / FOLDER).iterdir() if path.suffix != ".lock"]
