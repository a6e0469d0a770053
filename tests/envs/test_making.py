"""Games are made as Gymnasium's and PettingZoo's users make theirs, and then pass these projects' own checks."""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test

import rllib_lmgame
from rllib_lmgame.envs.checking.checker import TypedText
from rllib_lmgame.envs.registry import own_games

FOR_SEVERAL = [spec for spec in own_games().values() if spec.kind != "gymnasium"]
MADE = [
    "import gymnasium; env = gymnasium.make('rllib_lmgame:lmgame/Sokoban-v0', max_turns=7)",
    "import rllib_lmgame.envs, gymnasium; env = gymnasium.make('lmgame/Sokoban-v0', max_turns=7)",
    "import rllib_lmgame; env = rllib_lmgame.make('lmgame/Sokoban-v0', max_turns=7); "
    "from gymnasium.spaces import Text; import gymnasium; gymnasium.make('lmgame/Maze-v0')",
]
"""Whichever is imported first."""


@pytest.mark.parametrize("code", [MADE[0], *(pytest.param(code, marks=pytest.mark.slow) for code in MADE[1:])])
def test_a_game_is_made_in_a_fresh_process_without_anything_heavy(code: str) -> None:
    heavy = "[m for m in ('torch', 'ray', 'vllm', 'deepspeed', 'transformers', 'pandas') if m in sys.modules]"
    script = f"{code}\nimport sys; print({heavy}, env.unwrapped.options.max_turns, len(env.reset(seed=1)[0]) > 20)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("[] 7 True", "")


def test_a_made_game_for_one_passes_gymnasiums_own_check() -> None:
    env = gymnasium.make("rllib_lmgame:lmgame/Sokoban-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Its advice is about spaces that are boxes.
        check_env(env.unwrapped, skip_render_check=True)
    assert env.spec is not None and env.spec.id == "lmgame/Sokoban-v0"


@pytest.mark.parametrize("spec", FOR_SEVERAL, ids=lambda spec: spec.game_id)
def test_a_made_game_for_several_passes_pettingzoos_own_checks(spec) -> None:
    if spec.extra:
        pytest.importorskip(spec.extra)
    make = partial(rllib_lmgame.make, spec.game_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if spec.kind == "aec":
            api_test(TypedText(make()), num_cycles=40)
            seed_test(make, num_cycles=20)
        else:
            parallel_api_test(make(), num_cycles=40)
            parallel_seed_test(make, num_cycles=20)


def test_the_command_loads_no_gymnasium_and_the_games_no_game() -> None:
    code = "import sys, rllib_lmgame.cli.main; print({'gymnasium', 'numpy'} & set(sys.modules))\n"
    code += "import rllib_lmgame.envs\n"
    code += "print([name for name in sys.modules if name.startswith('rllib_lmgame.envs.games.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("set()\n[]\n", "")
