"""Whatever is typed: nothing raises, rewards are finite, games end, zero-sum games sum to zero."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_lmgame.envs import make_game, make_session
from rllib_lmgame.envs.checking.checker import MAX_REPLIES
from rllib_lmgame.envs.contract.base import text_space
from rllib_lmgame.envs.contract.splits import SPLITS, level_digest, split_few, split_of
from rllib_lmgame.envs.registry import games
from tests.envs.begun import each_game

SPECIAL = st.sampled_from(
    ["", "||", "Up || Down", "(move 1 to 0)", "5", "check", "bet", "fold", "<answer>Up</answer>", "\ud800", "Up||" * 40]
)
REPLIES = st.lists(st.one_of(st.integers(0, 30), SPECIAL, st.text(max_size=60)), min_size=1, max_size=25)
QUICK = settings(derandomize=True)
IN_A_BROWSER = settings(QUICK, max_examples=25)  # Three hundred examples take longer than a test may.


def some_action(session, agent: str, pick: int) -> str:
    """One of the listed actions; where the game lists none (anything may be typed), what a random player types."""
    legal = session.observe(agent).legal_actions
    return legal[pick % len(legal)] if legal else session.random_action(agent, random.Random(pick)) or f"word {pick}"


def some_actions(session, agents, reply: int | str, turn: int) -> dict[str, str]:
    """What the players who are to act type: of those who reply at once all type a drawn text, or one of them alone."""
    if isinstance(reply, int):
        return {agent: some_action(session, agent, reply + i) for i, agent in enumerate(agents)}
    odd = set(agents) if len(reply) % 2 else {agents[turn % len(agents)]}
    return {agent: reply if agent in odd else some_action(session, agent, turn) for agent in agents}


def is_zero_sum(session) -> bool:
    """Whether rewards without penalties must sum to 0."""
    if session.game_id == "lmgame/TextArenaMatch-v0":  # One of many of its class, not all of which are.
        return True
    return getattr(session.env.unwrapped, "zero_sum", False)


def typed(session, agent: str, pick: int) -> str:
    """Nonsense, the expert's action or a legal one."""
    if pick > 45:
        return "zzz"
    return (pick > 30 and session.expert_action(agent)) or some_action(session, agent, pick)


@each_game
def test_any_sequence_of_texts(game: str) -> None:
    session = make_session(game)
    space = text_space()

    @(IN_A_BROWSER if game == "lmgame/MiniWoB-v0" else QUICK)
    @given(seed=st.integers(0, 2**31), replies=REPLIES)
    def run(seed: int, replies: list[int | str]) -> None:
        session.reset(seed)
        total = penalties = 0.0
        result = None
        for turn, reply in enumerate(replies):
            actors = session.to_act()
            if not actors:
                break
            seen = {agent: session.observe(agent) for agent in actors}
            assert all(view.text in space for view in seen.values())
            texts = some_actions(session, actors, reply, turn)
            result = session.step(texts)
            assert all(math.isfinite(reward) for reward in result.rewards.values())
            assert not (result.terminated and result.truncated)
            for agent, view in seen.items():
                info = result.infos[agent]
                assert not (texts[agent] in view.legal_actions and info["invalid_action"])
                assert ("success" in info) == (result.end_of(agent) is not None)
            total += sum(result.rewards.values())
            penalties += sum(info.get("penalty", 0.0) for info in result.infos.values())
        if result is not None and result.done:
            assert session.to_act() == ()
            if is_zero_sum(session):
                assert math.isclose(total, penalties, abs_tol=1e-9)

    run()


@each_game
def test_returns_stay_in_the_range_the_registry_gives(game: str) -> None:
    low, high = games()[game].reward_range or (0.0, 0.0)
    session = make_session(game)

    @(IN_A_BROWSER if game == "lmgame/MiniWoB-v0" else QUICK)
    @given(seed=st.integers(0, 2**31), picks=st.lists(st.integers(0, 60), min_size=90, max_size=90))
    def run(seed: int, picks: list[int]) -> None:
        session.reset(seed)
        totals = dict.fromkeys(session.agent_ids, 0.0)
        for pick in itertools.islice(itertools.cycle(picks), MAX_REPLIES):
            if not session.to_act():
                break
            actions = {agent: typed(session, agent, (pick + 17 * i) % 61) for i, agent in enumerate(session.to_act())}
            for other, reward in session.step(actions).rewards.items():
                totals[other] += reward
        assert session.to_act() == ()
        assert all(low - 1e-9 <= total <= high + 1e-9 for total in totals.values()), totals

    run()


@pytest.mark.parametrize(
    ("game", "harmless"),
    [
        ("lmgame/DeepSearch-v0", "search[x]"),
        ("lmgame/ToolUse-v0", '{"name": "list_files", "arguments": {}}'),
        ("lmgame/WebNavigation-v0", "goto [/]"),
        ("lmgame/WebShop-v0", "search[x] || click[back to search]"),
        ("lmgame/TextCraft-v0", "inventory"),
        ("lmgame/BabyAI-v0", "turn left"),
    ],
)
def test_the_smallest_return_the_registry_gives_can_come_about(game: str, harmless: str) -> None:
    spec = games()[game]
    rounds, rest = divmod((spec.horizon or 0) - 3, 3)
    session = make_session(game)
    session.reset(0)
    total = 0.0
    for reply in [*[(), (harmless,), ("zzz", harmless)][rest], *("zzz", "zzz", harmless) * rounds, *["zzz"] * 3]:
        result = session.step({"player": reply})
        total += result.rewards["player"]
    assert result.done and spec.reward_range is not None and total == pytest.approx(spec.reward_range[0])


@pytest.mark.parametrize(("one", "two"), [("CarDealer", "CarDealerDuet"), ("TwentyQuestions", "TwentyQuestionsDuet")])
def test_a_game_for_two_has_the_levels_of_the_game_for_one_in_the_same_splits(one: str, two: str) -> None:
    alone, together = (make_game(f"lmgame/{name}-v0", {"split": "test"}) for name in (one, two))
    for seed in range(5):
        together.reset(seed=seed)
        assert {alone.reset(seed=seed)[1]["level"]} == {info["level"] for info in together.infos.values()}


def test_hashes_are_the_same_for_ever() -> None:
    assert level_digest("sokoban") == "45950e40af3b3d03"
    shares = [split_of(f"level {i}") for i in range(5000)]
    assert abs(shares.count("test") - 500) < 80 and abs(shares.count("validation") - 500) < 80
    assert set(split_few("abc").values()) == set(SPLITS)
    with pytest.raises(ValueError, match="three"):
        split_few("ab")
