"""The example games of the documentation keep the contract and can be played by their experts."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.cli.main import main
from rllib_lmgame.envs import make_session
from rllib_lmgame.measures.exploitability import exploitability, odds_of, uniform_policy
from rllib_lmgame.measures.game_tree import game_tree

PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-game.md").read_text(encoding="utf-8")
GAMES = ["guess_number:GuessNumber", "take_stones:TakeStones"]
FURTHER = ["matching_pennies:MatchingPennies", "shaped_guess:ShapedGuess", "say_a_number:SayANumber"]


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's games, in the directory that commands are started in."""
    found = re.findall(r"<!-- tested: (\S+) -->\n```python\n(.*?)\n```", PAGE, re.DOTALL)
    assert [name for name, _ in found] == [f"{game.split(':')[0]}.py" for game in (*GAMES, *FURTHER)]
    for name, text in found:
        (tmp_path / name).write_text(text + "\n", encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def test_the_page_shows_what_init_begins_with(files: Path) -> None:
    scaffolds = Path(__file__).parents[2] / "rllib_lmgame" / "experiments" / "files" / "scaffolds"
    assert (files / "guess_number.py").read_text() == (scaffolds / "guess_number.py").read_text()


@pytest.mark.parametrize("game", [GAMES[0], pytest.param(GAMES[1], marks=pytest.mark.slow)])
def test_examples_pass_games_check(game: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["games", "check", game])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.strip() in PAGE, "the page shows what is printed"


@pytest.mark.slow
@pytest.mark.parametrize("game", FURTHER)
def test_further_games_keep_the_contract(game: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["games", "check", game]) == 0, capsys.readouterr().out


def test_the_game_with_exact_measures_is_walked_through() -> None:
    """Uniform play cannot be exploited; who always shows heads loses."""
    find_in_current_directory(FURTHER[0])
    tree = game_tree(FURTHER[0])
    assert len(tree.information_sets) == 2
    assert exploitability(tree, odds_of(uniform_policy, tree)) == pytest.approx(0.0)
    assert exploitability(tree, [{"heads": 1.0}, {"heads": 0.5, "tails": 0.5}]) == pytest.approx(0.5)


@pytest.mark.parametrize("lucky", [False, True])
def test_shaping_pays_for_what_a_guess_rules_out_and_leaves_success_alone(lucky: bool) -> None:
    """Whoever wins gets as much in all, also by the first guess."""
    find_in_current_directory(FURTHER[1])
    session = make_session(FURTHER[1], {"split": "test"})
    session.reset(0)
    paid = []
    while session.to_act():
        guess = session.env.unwrapped._number if lucky else session.expert_action("player")
        result = session.step({"player": str(guess)})
        paid.append(result.rewards["player"])
    assert all(reward > 0 for reward in paid) and (len(paid) == 1) is lucky
    assert sum(paid) == pytest.approx(1 + 0.05 * math.log2(100)) and result.infos["player"]["success"]
    session.close()


@pytest.mark.parametrize("game", [GAMES[1], "plain:Nim"])
def test_games_that_keep_their_state_have_no_exploitability(game: str, files: Path) -> None:
    """Also those of others, that do not know ``show_rules``."""
    (files / "plain.py").write_text("from pettingzoo import AECEnv\n\nclass Nim(AECEnv):\n    pass\n")
    find_in_current_directory(game)
    with pytest.raises(ValueError, match=r"cannot be walked through: .* TextTreeGame"):
        game_tree(game)


@pytest.mark.slow
def test_checker_sees_a_fault_in_the_example(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = files / "guess_number.py"
    example.write_text(example.read_text(encoding="utf-8").replace("rng.randint(", "random.randint("), encoding="utf-8")
    assert main(["games", "check", GAMES[0]]) == 1
    assert "seed" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("Text(20, charset=string.printable)", "Text(20)", ["Out of bounds observation"]),
        # The draws of two new spaces may happen to be equal: then the second fault is the one that is seen.
        (
            "return self.said\n",
            'return Text(1, charset="123")\n',
            ["Incorrect actions", "should return the exact same space object"],
        ),
    ],
)
def test_the_faults_named_of_others_environments_are_what_the_checker_says(
    right: str, wrong: str, said: list[str], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = files / "say_a_number.py"
    text = example.read_text(encoding="utf-8")
    assert right in text and all(fault in " ".join(PAGE.split()) for fault in said)
    example.write_text(text.replace(right, wrong), encoding="utf-8")
    assert main(["games", "check", FURTHER[2]]) == 1
    out = capsys.readouterr().out
    assert any(fault in out for fault in said)
