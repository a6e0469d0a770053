"""Numbers of a configuration are refused, before anything starts, where who reads them could not hold them."""

from __future__ import annotations

import math
import types
import typing

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import build, option
from rllib_lmgame.config.algorithms import OWN
from rllib_lmgame.config.rllib import EvaluationOptions, RLlibOptions
from rllib_lmgame.endpoints.address import EndpointOptions
from rllib_lmgame.envs.contract.base import TextGameOptions
from rllib_lmgame.envs.registry import options_of, own_games
from rllib_lmgame.experiments.spec import CheckpointOptions, ExperimentOptions, SearchOptions
from rllib_lmgame.policies.options import TinyModelOptions
from rllib_lmgame.rollouts.options import GameConfig

HUGE = (10**26, 1e26, -(10**26), math.inf, -math.inf, math.nan)


def _kinds(hint: typing.Any) -> set[typing.Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {kind for arm in typing.get_args(hint) for kind in _kinds(arm)}
    return {hint}


def _groups() -> list[type]:
    sections = {group for entry in OWN.values() for group in entry.groups.values()}
    games = {options_of(spec.game_id) for spec in own_games().values()} - {None}
    own = {ExperimentOptions, CheckpointOptions, SearchOptions, EndpointOptions, TinyModelOptions}
    own |= {RLlibOptions, EvaluationOptions, GameConfig}
    return sorted(sections | games | own, key=lambda group: group.__name__)


@pytest.mark.parametrize("group", _groups(), ids=lambda group: group.__name__)
def test_no_option_takes_a_number_that_overflows(group: type) -> None:
    """Also in lists of numbers, and in mappings to them."""
    for name, hint in typing.get_type_hints(group).items():
        for kind in _kinds(hint):
            inner = [arm for arm in typing.get_args(kind) if arm is not Ellipsis]
            for huge in HUGE:
                value: typing.Any = huge
                if kind not in (int, float):
                    if not {int, float} & set(inner):
                        continue
                    value = {"m": huge} if typing.get_origin(kind) is dict else [huge] * len(inner)
                with pytest.raises(ConfigError) as caught:
                    build(group, {name: value}, "here")
                assert any(each.path.startswith(f"here.{name.rstrip(chr(95))}") for each in caught.value.each), (
                    name,
                    value,
                )


class _Theirs(TextGameOptions):
    world_seed: int = option(2**40, "Of a world.")
    budget: float = option(5e9, "Money.")
    sizes: list[float] = option([], "Of things.")
    depth: int = option(0, "Below the sea.", ge=-(10**12), le=10)


def test_options_of_games_of_others_take_any_finite_number_and_ours_beside_them_do_not() -> None:
    given = {"world_seed": 2**40, "budget": -5e9, "sizes": [1e10], "depth": -(10**11)}
    assert vars(build(_Theirs, given)).items() >= given.items()
    for wrong in ({"budget": math.inf}, {"world_seed": 10**400}, {"max_turns": 5 * 10**9}, {"depth": -(10**13)}):
        with pytest.raises(ConfigError):
            build(_Theirs, wrong)
