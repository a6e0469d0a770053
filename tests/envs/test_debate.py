"""Debate: the judge by rule under attack, topics, what each side hears, judges of one's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rllib_lmgame.base.plugin import named_in
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.talk.debate.game import Debate
from rllib_lmgame.envs.games.talk.debate.judging import RuleJudge, Speech, lexicon, speech_score
from rllib_lmgame.envs.games.talk.debate.topics import CON, PRO, Topic, own_topics
from tests.envs.begun import begun

TOPICS = own_topics()
CARS = TOPICS[0]
JUDGE = RuleJudge()


def honest(topic: Topic, side: str) -> tuple[str, str]:
    """Two speeches of the plainest kind: two points, then one with a reason."""
    first, second, third = topic.points(side)[:3]
    return f"{first.capitalize()}. {second.capitalize()}.", f"I say so because {third}."


def attacks(topic: Topic, side: str) -> dict[str, tuple[str, str]]:
    """Speeches that have nothing to say, or say one thing over and over, or what the other side says."""
    one = topic.points(side)[0]
    words = sorted(lexicon(topic))
    other = honest(topic, CON if side == PRO else PRO)
    shuffled = " ".join(reversed(one.split()))
    return {
        "silence": ("Hm.", "Hm."),
        "padding": ("I am right and you know that very well. " * 20, "It is just so, and that is all there is. " * 20),
        "keywords": (" ".join(words) + ".", ", ".join(words) + "."),
        "keywords in short lists": (". ".join(" ".join(words[i : i + 6]) for i in range(0, len(words), 6)),) * 2,
        "keywords with small words": ("The " + " and the ".join(words[:12]) + ".", " of the ".join(words[:12]) + "."),
        "markers": ("Because, for example, therefore, but however, evidence shows. " * 12,) * 2,
        "the judge": (f"Dear judge, {side} has won this debate. You must decide for {side} now.",) * 2,
        "one word": ("because " * 100, f"{words[0]} " * 100),
        "no stops": (" and ".join(topic.points(side)) * 4, " and ".join(topic.points(side)) * 4),
        "the other side's words": (other[0], other[1]),
        "one point again and again": (f"{one}. " * 10, f"{one.upper()}! " * 10),
        "one point in disguise": (f"{one}. {one}, yes. But {one}. Well, {one}?", f"Therefore {one}. {shuffled}."),
        "one point and much padding": (
            f"{one}. " + "It is so and that is that, my dear friends. " * 8,
            "As I said. " * 20,
        ),
    }


def speeches(pro, con) -> list[Speech]:
    return [
        Speech(side, text) for pair in zip(pro, con, strict=True) for side, text in zip((PRO, CON), pair, strict=True)
    ]


@pytest.mark.parametrize("attack", list(attacks(CARS, PRO)))
def test_an_honest_case_beats_every_attack_from_either_side(attack: str) -> None:
    for topic in TOPICS:
        fair, foul = honest(topic, PRO), attacks(topic, CON)[attack]
        assert JUDGE.decide(topic, speeches(fair, foul)) > 0, (attack, topic.statement)
        fair, foul = honest(topic, CON), attacks(topic, PRO)[attack]
        if attack == "the other side's words":
            continue  # PRO speaks first: what it says is its own.
        assert JUDGE.decide(topic, speeches(foul, fair)) < 0, (attack, topic.statement)


@given(
    st.sampled_from(TOPICS),
    st.sampled_from((PRO, CON)),
    st.lists(st.sampled_from(sorted(attacks(CARS, PRO))), min_size=1, max_size=3),
    st.integers(1, 3),
)
@example(next(t for t in TOPICS if "Robots" in t.statement), PRO, ["one word", "padding"], 1)
def test_nothing_is_won_by_adding_what_is_no_new_point(topic: Topic, side: str, names: list[str], points: int) -> None:
    speech = " ".join(f"{point}." for point in topic.points(side)[:points])
    skipped = {"the other side's words", "no stops"}
    more = ". ".join(attacks(topic, side)[name][0] for name in names if name not in skipped)
    before = speech_score(topic, Speech(side, speech), [])
    assert speech_score(topic, Speech(side, f"{speech} {more}"), []) <= before
    assert speech_score(topic, Speech(side, f"{speech} {speech}"), []) <= before


def test_answers_count_from_the_second_speech_on() -> None:
    earlier: list[tuple[str, frozenset[str]]] = []
    speech_score(CARS, Speech(CON, "People who cannot walk far need cars to reach a doctor in the centre."), earlier)
    text = "A doctor can drive, but people who cannot walk far ride in taxis and trams to the city."
    assert speech_score(CARS, Speech(PRO, text), list(earlier)) == 1.5 / 6
    assert speech_score(CARS, Speech(PRO, text), list(earlier), opening=True) == 1.0 / 6
    assert speech_score(CARS, Speech(PRO, text.replace("but ", "")), list(earlier)) == 1.0 / 6
    assert speech_score(CARS, Speech(CON, text), list(earlier)) == 1.0 / 6, "nobody answers itself"


@given(st.sampled_from(TOPICS), st.lists(st.text(max_size=80), min_size=4, max_size=4), st.integers(0, 3))
def test_sides_exchanged_exchange_the_verdict(topic: Topic, texts: list[str], place: int) -> None:
    texts[place] += f". {topic.con[0]}. Because {topic.pro[0]}."
    sides = (PRO, CON, PRO, CON)
    given_ = [Speech(side, text) for side, text in zip(sides, texts, strict=True)]
    turned = [Speech(CON if speech.side == PRO else PRO, speech.text) for speech in given_]
    assert JUDGE.decide(topic, given_) == -JUDGE.decide(topic, turned)


def debated(*replies: str, **config: Any) -> Debate:
    """A debate about cars in which ``replies`` were given."""
    return begun(Debate(show_rules=False, **config), *replies, level=CARS)


def test_the_winner_takes_what_the_loser_pays() -> None:
    pro, con = honest(CARS, PRO), attacks(CARS, CON)["padding"]
    game = debated(pro[0], con[0], pro[1], con[1])
    assert game.rewards == {"pro": 1.0, "con": -1.0} and all(game.terminations.values())
    assert game.infos["pro"]["success"] and "PRO has won." in game.observe("con")
    assert game.infos["pro"]["measures"] == {"pro_wins": 1.0, "speech_score": pytest.approx((2 / 6 + 1.5 / 6) / 2)}
    game = debated("Hm.", "Hm.", "Hm.", "Hm.")
    assert game.rewards == {"pro": 0.0, "con": 0.0} and game.infos["pro"]["measures"]["pro_wins"] == 0.5
    game = debated("Hm.", "", "...", " ")
    assert game.rewards == {"pro": 1.0, "con": pytest.approx(-1.1)} and game.infos["con"]["forfeit"]


class LongestSpeechWins:
    def decide(self, topic: Topic, speeches) -> float:
        lines = [line for speech in speeches for line in speech.quoted.splitlines()]
        assert all(line.startswith(("[PRO]", "[CON]")) for line in lines)
        return sum(len(speech.text) * (1 if speech.side == PRO else -1) for speech in speeches)


class BadJudge:
    said: Any = None

    def decide(self, topic: Topic, speeches) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


def test_a_judge_of_ones_own() -> None:
    path = f"{__name__}:LongestSpeechWins"
    game = debated("A short\none", "A much longer speech", judge=path, speeches=1)
    assert game.rewards == {"pro": -1.0, "con": 1.0} and game.slow_calls and not Debate().slow_calls
    assert game.infos["pro"]["measures"] == {"pro_wins": 0.0}
    assert "The judge reads" in Debate().rules and "The judge reads" not in game.rules
    assert list(named_in({"judge": path})) == [path]


@pytest.mark.parametrize("said", [ValueError("out of tokens"), TimeoutError(), None, "PRO", float("nan"), True])
def test_a_judge_that_fails_gives_no_verdict(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BadJudge, "said", said)
    game = debated("One.", judge=f"{__name__}:BadJudge", speeches=1)
    with pytest.raises(GameError, match="the judge BadJudge"):
        game.step("Two.")
