"""Win, draw and loss from what games say of their players."""

from __future__ import annotations

import pytest

from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.verdicts import outcomes


@pytest.mark.parametrize(
    ("verdicts", "results", "ends"),
    [
        ([True, False], [1, -1], "win loss"),
        ([False, False], [0, 0], "draw draw"),
        ([False, False], [-1, -1], "draw draw"),
        ([False, False], [0, -1], "draw loss"),  # Nobody won, but one did worse (a player thrown out, say).
        ([True, True, False], [0.5, 0.5, -1], "win win loss"),
        ([True, False, False], [1, 0, -1], "win loss loss"),
        ([None, None], [1, -1], "win loss"),
        ([None, None], [0, 0], "draw draw"),
        ([None, None, None], [2, 2, -4], "draw draw loss"),
        ([None, False], [3, 0], "win loss"),
        ([True, None], [1, 5], "win win"),
        ([None, None], [0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], "draw draw"),  # These sums differ in their last bit.
    ],
)
def test_outcomes(verdicts: list[bool | None], results: list[float], ends: str) -> None:
    agents = "abc"[: len(results)]
    assert (
        " ".join(outcomes(dict(zip(agents, verdicts, strict=True)), dict(zip(agents, results, strict=True))).values())
        == ends
    )


@pytest.mark.parametrize("game", ["lmgame/TicTacToe-v0", "lmgame/KuhnPoker-v0", "lmgame/TextArenaMatch-v0"])
def test_our_games_for_several_say_what_everybody_got(game: str) -> None:
    """``result`` stands in the last info of every player, and a forfeit is the forfeiter's loss."""
    session = make_session(game)
    assert not session.cooperative
    session.reset(0)
    forfeiter = session.to_act()[0]
    while session.to_act():
        (agent,) = session.to_act()
        result = session.step(
            {agent: "zzz" if agent == forfeiter else (session.observe(agent).legal_actions or ("zzz",))[0]}
        )
    verdicts = {agent: info["success"] for agent, info in result.infos.items()}
    ends = outcomes(verdicts, {agent: info["result"] for agent, info in result.infos.items()})
    assert ends == {agent: "loss" if agent == forfeiter else "win" for agent in session.agent_ids}
    session.close()
