"""Option groups in option groups, and groups that come in types."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import (
    REQUIRED,
    Group,
    Scheduled,
    as_mapping,
    build,
    given,
    leaves,
    option,
    tag,
    value_at,
    walk,
    with_changes,
)
from rllib_lmgame.base.trust import Gate


class Shape(Group):
    type: str = tag("round", "The form.", choices=("round", "square", "long"))
    side: Scheduled[float] = option(1.0, "Length of a side.", gt=0)
    width: int | None = option(None, "Across.", ge=1, lt=10)


class Bonus(Group):
    target: float = option(REQUIRED, "What is aimed at. It is a number.", gt=0)
    in_: str = option("loss", "Where it is.", choices=("loss", "reward", "per_turn", "per_token", "supper"))


class Plugin(Group, extra="allow"):
    type: str = tag("own", "A name.")
    decay: float = option(0.9, "Decay.")


class House(Group):
    shape: Shape = option(Shape(), "Of the house.")
    bonus: Bonus | None = option(None, "What is paid.")
    plugin: Plugin = option(Plugin(), "Of somebody.")
    rooms: int = option(3, "How many.")


@dataclass
class Elsewhere:
    """A group of another package."""


def test_types_and_groups() -> None:
    house = build(House, {"shape": "square", "bonus": {"target": 2, "in": "reward"}, "plugin": {"type": "a:b", "x": 1}})
    assert house == House(
        shape=Shape(type="square"), bonus=Bonus(target=2.0, in_="reward"), plugin=Plugin(type="a:b", x=1)
    )
    assert build(House, as_mapping(house)) == house
    assert as_mapping(house)["shape"] == {"type": "square", "side": 1.0, "width": None}
    assert as_mapping(house)["plugin"] == {"type": "a:b", "x": 1}
    assert build(House, {"bonus": None}, base=house) == house.model_copy(update={"bonus": None})


def test_values_go_on_top_of_those_of_the_same_type() -> None:
    house = build(House, {"shape": {"type": "long", "width": 2}, "bonus": {"target": 2}})
    assert build(House, {"shape": {"side": 3}}, base=house).shape == Shape(type="long", side=3.0, width=2)
    assert build(House, {"shape": "long"}, base=house).shape == Shape(type="long", side=1.0, width=2)
    assert build(House, {"bonus": {"in": "reward"}}, base=house).bonus == Bonus(target=2.0, in_="reward")


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ({"shape": "squre"}, "shape.type", "did you mean 'square'"),
        ({"shape": {"type": "long", "width": 10}}, "shape.width", "must be less than 10, got the whole number 10"),
        ({"shape": 3}, "shape", "must be a name or a mapping of options, got the whole number 3"),
        ({"shape": None}, "shape", "must be a name or a mapping of options, got nothing"),
        ({"bonus": {}}, "bonus.target", "is missing: What is aimed at"),
        ({"bonus": True}, "bonus", "must be a mapping of options, got the truth value True; {} is all defaults"),
        ({"bonus": Elsewhere()}, "bonus", "must be a mapping of options, got Elsewhere "),
        ({"bonus": {"target": 1, "inn": "loss"}}, "bonus.inn", "did you mean 'in'"),
        ({"bonus": {"target": 1, "in": "los"}}, "bonus.in", "did you mean 'loss'?"),
        ({"bonus": {"target": 1, "in": "per"}}, "bonus.in", "did you mean 'per_turn' or 'per_token'?"),
    ],
)
def test_errors_name_the_key_through_the_groups(values: Any, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(House, values, "config.house")
    assert raised.value.path == f"config.house.{key}"
    assert message in raised.value.message


def test_what_was_given_is_known() -> None:
    house = build(House, {"rooms": 3, "shape": {"type": "round"}})
    assert (given(house), given(house.shape), given(House())) == ({"rooms", "shape"}, {"type"}, frozenset())
    assert given(build(House, {"plugin": {}}, base=house)) == {"rooms", "shape", "plugin"}
    assert given(with_changes(House(), {"shape.side": 1.0}).shape) == {"side"}
    for other in (copy.deepcopy(house), pickle.loads(pickle.dumps(house))):
        assert (other, given(other)) == (house, given(house))


def test_dotted_keys() -> None:
    keys = ["shape.type", "shape.side", "shape.width", "bonus.target", "bonus.in", "plugin.type", "plugin.decay"]
    assert list(leaves(House)) == [*keys, "rooms"]
    groups = {each.key: each.group for each in walk(House) if each.group}
    assert groups == {"shape": Shape, "bonus": Bonus, "plugin": Plugin}
    assert (value_at(House(), "shape.side"), value_at(House(), "bonus.target")) == (1.0, None)
    changed = with_changes(House(), {"shape.side": 4.0, "bonus.target": 1.0, "rooms": 2})
    assert (changed.shape.side, changed.bonus, changed.rooms) == (4.0, None, 2), "a group that is off stays off"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"shape": {"type": "/bin/sh"}}, "shape.type"),
        ({"bonus": {"target": 1, "in": "a:b"}}, "bonus.in"),
        ({"plugin": "a:b"}, "plugin.type"),
        ({"plugin": {"x": "/etc/passwd"}}, "plugin.x"),
        ({"bonus": {"other": 1}}, "bonus.other"),
    ],
)
def test_a_strangers_groups_are_walked(values: Any, key: str) -> None:
    gate = Gate("a stranger", "leave it")
    gate.options(House, {"shape": "long", "bonus": {"target": 1}, "plugin": {"x": "word"}}, "house")
    with pytest.raises(ConfigError) as raised:
        gate.options(House, values, "house")
    assert raised.value.path == f"house.{key}"


class Scaling(Group):
    """Options of somebody's class, made in Python."""

    scale: Callable[[float], float] | None = option(None, "Of rewards.")
    shares: dict[str, float] | None = option(None, "By name.", ge=0)


def test_a_function_is_taken_where_one_is_meant_and_numbers_of_a_mapping_that_may_be_null_have_limits() -> None:
    assert build(Scaling, {"scale": abs}).scale is abs
    for key, value in (("scale", 3), ("shares", {"a": -1}), ("shares", {"a": math.inf})):
        with pytest.raises(ConfigError) as caught:
            build(Scaling, {key: value})
        assert caught.value.path.startswith(key)


def test_all_wrong_options_are_named_at_once_also_where_a_group_is_made_in_python() -> None:
    wrong: dict[str, Any] = {"rooms": "x", "rom": 1, "bonus": {"target": 0, "inn": "loss"}}
    for path, make in (("house.", lambda: build(House, wrong, "house")), ("", lambda: House(**wrong))):
        with pytest.raises(ConfigError) as caught:
            make()
        keys = {"rooms", "rom", "bonus.target", "bonus.inn"}
        assert {each.path for each in caught.value.each} == {path + key for key in keys}
        assert str(caught.value).count("\n") == 3
