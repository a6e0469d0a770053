"""What the games of talk share: two players who speak in turn, and what each is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextAECGame, TextAECOptions
from rllib_lmgame.envs.contract.base import MAX_QUOTED
from rllib_lmgame.envs.games.talk.transcript import Transcript

HEARD = f"The other player hears the first {MAX_QUOTED:,} characters of a message."


class TalkOptions(TextAECOptions):
    """``env_config`` keys of the games of talk."""

    history: bool = option(
        False, "Show everything that was said every time, not only what is new since one's last move."
    )


class TalkGame(TextAECGame):
    """A game for two who talk in turn.

    A game writes :attr:`names`, what each player is called by the other one, puts words and public events into
    ``self.talk``, which :meth:`start_talk` makes, and shows it by :meth:`heard`.
    """

    Options: ClassVar[type[TextAECOptions]] = TalkOptions
    zero_sum: ClassVar[bool] = False
    has_levels: ClassVar[bool] = True
    turns_are_tries: ClassVar[bool] = True
    names: ClassVar[Mapping[str, str]]
    options: Any

    def start_talk(self) -> None:
        """Nothing has been said yet."""
        self.talk = Transcript(self.names)

    def heard(self, agent: str) -> str:
        """What ``agent`` is shown of the talk."""
        return self.talk.shown_to(agent, everything=self.options.history)

    def other(self, agent: str) -> str:
        """The other player."""
        one, two = self.possible_agents
        return two if agent == one else one
