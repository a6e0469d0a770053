"""What a user message says beside the game's observation: all that is said of the form of a reply. Games say what a
reply holds, not how it is marked.
"""

from __future__ import annotations

from rllib_lmgame.envs.contract.session import Observation
from rllib_lmgame.policies.chat.parser import is_name, marks_of
from rllib_lmgame.settings.placeholders import fill_placeholders
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions


def message_parts(options: LanguageModelOptions, observation: Observation, note: str | None) -> tuple[str, str, str]:
    """Lines of the user message before the game's text, that text, and lines after it.

    A reply that could not be read came to the game as empty text. Where the model is told why it could not, what the
    game says of the empty text is left out: one fault has one reason.

    Args:
        options: Whether models are reminded of the format and of the turns left.
        observation: What the game shows.
        note: Why the last reply could not be read, if it could not.
    """
    before, text, after = "", observation.text, ""
    if note and options.format_reminder:
        before = f"Your last reply could not be read: {note}.\n"
        if observation.refusal:
            text = text.removeprefix(observation.refusal).removeprefix("\n")
    if options.turn_note and observation.turns_left is not None:
        after += "\n" + fill_placeholders(options.turn_note, {"turns_left": observation.turns_left})
    if options.format_reminder:
        after += "\n" + _reminder(options)
    return before, text, after


def _reminder(options: LanguageModelOptions) -> str:
    """What a reply is, in the word that games have for it."""
    reply = f"<{options.answer_tag}>your reply</{options.answer_tag}>"
    if options.think == "off":
        return f"Write your reply between tags: {reply}. Nothing else is read."
    if not is_name(options.think_tag):  # Control tokens, which the model knows, and which are no text of a message.
        return f"Write your reply, after your reasoning, between tags: {reply}. The reply alone is played."
    reasoning = "your reasoning".join(marks_of(options.think_tag))
    return f"Write your reasoning and your reply between tags: {reasoning}{reply}. The reply alone is played."
