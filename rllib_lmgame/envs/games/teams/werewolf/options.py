"""Options of Werewolf, and its rules in words."""

from __future__ import annotations

from collections.abc import Sequence

from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextAECOptions
from rllib_lmgame.envs.games.teams.werewolf.teams import DOCTOR, SEER, WEREWOLF

RULES = """You play Werewolf with {players} players: {roles}. The werewolves know each other; all other roles \
are hidden.
Each night the werewolves choose whom to kill{powers}. \
Then the day comes: everybody hears who was killed{reveal}, {talk}and all vote, at the same time, on whom \
to send away. Who is named most often leaves the game; if several are named equally often, nobody does.
The village wins when no werewolf is left, the werewolves win when they are as many as the others. \
The dead win and lose with their team. After {days} days without a winner the game is drawn.
At night and when you vote, reply with one name, or nobody."""


class WerewolfOptions(TextAECOptions):
    """``env_config`` of Werewolf."""

    players: int = option(7, "Players.", ge=5, le=9)
    werewolves: int | None = option(
        None, "How many of them are werewolves, fewer than half; null: 1 of up to 6 players, else 2.", ge=1, le=4
    )
    seer: bool = option(True, "One of the village learns each night whether one player is a werewolf.")
    doctor: bool = option(True, "One of the village protects one player each night, itself perhaps.")
    reveal_roles: bool = option(True, "The role of who leaves the game is told to everybody.")
    talk_rounds: int = option(1, "How often everybody speaks each day before the vote.", ge=0, le=5)
    talk_length: int = option(300, "Characters of a speech that the others hear.", ge=1, le=500)
    max_days: int = option(8, "Days after which a game without a winner is drawn.", ge=1, le=50)


def rules_text(options: WerewolfOptions, roles: Sequence[str]) -> str:
    """The rules, given the role of every seat."""
    told = [f"{roles.count(role)} {_plural(role, roles.count(role))}" for role in dict.fromkeys(roles)]
    powers = ", the seer learns whether one player is a werewolf" * (SEER in roles)
    powers += ", the doctor protects one player" * (DOCTOR in roles)
    often = "" if options.talk_rounds == 1 else f" {options.talk_rounds} times"
    talk = f"everybody speaks{often} in turn (up to {options.talk_length} characters are heard), "
    return RULES.format(
        players=options.players,
        roles=", ".join(told),
        powers=powers,
        reveal=" and which role they had" * options.reveal_roles,
        talk=talk * bool(options.talk_rounds),
        days=options.max_days,
    )


def _plural(role: str, count: int) -> str:
    return role if count == 1 else {WEREWOLF: "werewolves"}.get(role, f"{role}s")
