"""Replies that are one move as a whole: programs, queries, answers and talk, in which ``||`` means nothing."""

from __future__ import annotations

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame

FENCE = "```"


class WholeReplyGame(TextGame):
    """A game whose reply is never split at ``||``."""

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        if self.options.max_actions_per_turn != 1:
            raise ConfigError(
                "env_config.max_actions_per_turn", "must be 1: in this game a reply is one move as a whole"
            )

    def split_reply(self, reply: str) -> list[str]:
        """The reply itself."""
        return [reply.strip()]

    def legal_actions(self) -> tuple[str, ...]:
        """None: there are too many to list."""
        return ()


class AnswerGame(WholeReplyGame):
    """A game of one question, whose replies are tries at the answer."""

    turns_are_tries = True

    @property
    def rules(self) -> str:
        """:attr:`rules_text` with ``{tries}`` where the number of tries belongs."""
        tries = self.options.max_turns
        return self.rules_text.format(tries="one try" if tries == 1 else f"{tries} tries")


def fenced_blocks(text: str, languages: tuple[str, ...]) -> list[str]:
    """Contents of the blocks between lines of three backticks, of those marked with one of ``languages``.

    A block that is not closed runs to the end of the text (a reply may have been cut after it).
    """
    blocks: list[str] = []
    lines: list[str] | None = None
    wanted = False
    for line in text.split("\n"):
        if line.strip().startswith(FENCE):
            if lines is None:
                lines, wanted = [], line.strip()[len(FENCE) :].strip().lower() in languages
                continue
            if wanted:
                blocks.append("\n".join(lines))
            lines = None
        elif lines is not None:
            lines.append(line)
    if lines and wanted:
        blocks.append("\n".join(lines))
    return blocks


def only_block(text: str, languages: tuple[str, ...]) -> str:
    """The one block of a reply; repeating it word for word does no harm.

    Raises: InvalidAction: if there is none, or two different ones.
    """
    blocks = {block.strip() for block in fenced_blocks(text, languages) if block.strip()}
    name = languages[0]
    if not blocks:
        raise InvalidAction(f"give the answer in one block that begins with {FENCE}{name} and ends with {FENCE}.")
    if len(blocks) > 1:
        raise InvalidAction(f"there are {len(blocks)} different {FENCE}{name} blocks; give one.")
    return blocks.pop()


def as_block(content: str, language: str) -> str:
    """A reply that holds ``content`` as its block."""
    return f"{FENCE}{language}\n{content}\n{FENCE}"
