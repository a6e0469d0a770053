"""A debater that says the topic's points, and answers what the other side said."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_lmgame.envs.games.talk.debate.topics import Topic

POINTS_PER_SPEECH = 2
QUOTED_WORDS = 5


def speech_of(topic: Topic, side: str, own: Sequence[str], heard: Sequence[str]) -> str:
    """The next speech of a side.

    Args:
        topic: What is debated.
        side: ``PRO`` or ``CON``.
        own: Its speeches so far.
        heard: The other side's.
    """
    said = " ".join(own)
    points = [point for point in topic.points(side) if point not in said] or list(topic.points(side))
    if not own:
        first, *more = points[:POINTS_PER_SPEECH]
        return " ".join((f"I say so because {first}.", *(f"For example, {point}." for point in more)))
    taken_up = _first_words(heard[-1]) if heard else ""
    answer = f"My opponent says that {taken_up}, but this means little because {points[0]}."
    return " ".join((answer if taken_up else f"I say so because {points[0]}.", *(f"{p}." for p in points[1:2])))


def _first_words(speech: str) -> str:
    """What the other side said first, without how it began to say it."""
    sentence = speech.split(".")[0].rpartition(" because ")[2]
    words = ("".join(mark for mark in word if mark.isalnum() or mark in "'-") for word in sentence.split())
    return " ".join([word for word in words if word][:QUOTED_WORDS])
