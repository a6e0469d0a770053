"""What a user message says beside the game's observation."""

from __future__ import annotations

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.policies.placeholders import fill_placeholders


def own_lines(options: LanguageModelOptions, observation: Observation, note: str | None) -> tuple[str, str]:
    """Lines of the user message before and after the observation.

    Args:
        options: Whether models are reminded of the format and of the turns left.
        observation: What the game shows.
        note: Why the last reply could not be read, if it could not.
    """
    before = f"Your last reply could not be read: {note}.\n" if note and options.format_reminder else ""
    after = ""
    if options.turn_note and observation.turns_left is not None:
        after += "\n" + fill_placeholders(options.turn_note, {"turns_left": observation.turns_left})
    if options.format_reminder:
        think = f"<{options.think_tag}>your reasoning</{options.think_tag}>" if options.think != "off" else ""
        after += f"\nAnswer as {think}<{options.answer_tag}>your action</{options.answer_tag}>."
    return before, after
