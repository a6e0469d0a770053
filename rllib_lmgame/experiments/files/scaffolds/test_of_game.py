"""GuessNumber keeps the contract, and its expert plays it to the end."""

from rllib_lmgame.envs.checking.checker import check_game
from rllib_lmgame.envs.registry import session_of
from rllib_lmgame.experiments.files.scaffolds.guess_number import GuessNumber


def test_the_game_keeps_the_contract():
    assert check_game(GuessNumber) == []


def test_the_expert_plays_every_level_to_its_end():
    session = session_of("guess_number", GuessNumber(split="test"))
    for seed in range(10):
        session.reset(seed)
        while seats := session.to_act():
            step = session.step({seat: str(session.expert_action(seat)) for seat in seats})
        assert step.terminated and any(info.get("success") for info in step.infos.values())
    session.close()
