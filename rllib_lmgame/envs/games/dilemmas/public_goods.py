"""The public goods game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract import TextParallelOptions, Variant, read_word
from rllib_lmgame.envs.games.dilemmas.repeated import RepeatedGame, RepeatedOptions
from rllib_lmgame.envs.support.payoffs import social_welfare


class PublicGoodsOptions(RepeatedOptions):
    """``env_config`` of the public goods game."""

    players: int = option(4, "Players.", ge=3, le=20)
    endowment: int = option(20, "Tokens that everybody gets in each round, to keep or to give.", ge=1, le=1_000)
    multiplier: float = option(
        1.6, "What is given is multiplied by this and shared out; more than 1 and less than `players`.", gt=1
    )


class PublicGoods(RepeatedGame):
    """Everybody keeps tokens or gives them to a common pot, which grows and is shared out in equal parts.

    Observation: what everybody gave in the last round and what it paid, the points so far; with ``chat_turns`` before
        each round what the others said.
    Action: a number from 0 to 20, the tokens given; a message, where all talk.
    Reward: of each round, what is kept plus ``multiplier / players`` of all that was given, in endowments. That is 1.6
        where all give everything, 1 where nobody gives, up to 2.2 for who alone keeps everything. Four players, 20
        tokens, multiplier 1.6 and 10 rounds are the setting of E. Fehr and S. Gaechter, American Economic Review 90,
        2000. -0.1 for an invalid reply, for which nothing is given. Three in a row forfeit: the offender leaves with no
        further pay-off and the others play on, the pot's return to each unchanged, as long as there are two.
    Horizon: one reply per round, 10 rounds, known to the players; and ``chat_turns`` messages before each.
    Success: at least what everybody would have got if all had given everything.
    Measures: ``cooperation_rate``, the share of its endowments that a player gave; ``social_welfare``, the pay-offs of
        all relative to those if all had given everything.
    Agents and roles: ``player_0``, ``player_1`` ..., all of the role ``player``. Nothing is drawn, so there are no
        levels, and ``split`` changes nothing.
    Expert: the conditional cooperator, who gives everything first, then as much as the others gave on average
        (U. Fischbacher, S. Gaechter and E. Fehr, Economics Letters 71, 2001). Where all talk it announces
        what it will give.
    """

    variants = (Variant("lmgame/PublicGoods-v0", (1.7, 22.0)),)
    Options: ClassVar[type[TextParallelOptions]] = PublicGoodsOptions
    options: PublicGoodsOptions
    forfeit_eliminates = True

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        if self.options.multiplier >= self.options.players:
            raise ConfigError(
                "env_config.multiplier",
                f"must be less than `players` ({self.options.players}), else giving everything pays for everybody, got "
                f"{self.options.multiplier:g}",
            )

    def seat_roles(self) -> dict[str, str]:
        return {f"player_{i}": "player" for i in range(self.options.players)}

    @property
    def point_value(self) -> float:
        return 1 / self.options.endowment

    @property
    def stakes(self) -> str:
        chosen = self.options
        share = chosen.multiplier / chosen.players
        return "\n".join(
            [
                f"{chosen.players} players get {chosen.endowment} tokens each in every round and choose how many of "
                "them to give to a common pot. The pot is multiplied by "
                f"{chosen.multiplier:g} and shared out in equal parts: every token given by anybody pays {share:g} "
                f"points to everybody. Every token kept pays 1 point to who keeps it. {chosen.endowment} points are a "
                "reward of 1.",
                f"Reply with a number from 0 to {chosen.endowment}, the tokens you give. For a reply that cannot be "
                "read nothing is given.",
            ]
        )

    def question(self, agent: str) -> str:
        return f"How many of your {self.options.endowment} tokens do you give?"

    def choices(self, agent: str) -> tuple[str, ...]:
        return tuple(str(tokens) for tokens in range(self.options.endowment + 1))

    def read_choice(self, agent: str, text: str) -> int:
        return int(read_word(text, self.choices(agent), "number"))

    def default_choice(self, agent: str) -> int:
        return 0

    def pay(self, choices: Mapping[str, int]) -> dict[str, float]:
        share = sum(choices.values()) * self.options.multiplier / self.options.players
        return {agent: self.options.endowment - given + share for agent, given in choices.items()}

    def told(self, agent: str, choices: Mapping[str, int], paid: Mapping[str, float]) -> str:
        others = ", ".join(f"{other} gave {given}" for other, given in choices.items() if other != agent)
        return f"you gave {choices[agent]} and got {paid[agent]:g} points; {others}."

    @property
    def finished(self) -> bool:
        return super().finished or len(self.agents) < 2

    def won(self, agent: str) -> bool:
        return self.reached(agent, self.options.multiplier * self.options.endowment)

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return dict.fromkeys(self.possible_agents, 0.0)

    def expert_action(self, agent: str) -> str | None:
        if self.finished or agent not in self.agents:
            return None
        given = [tokens for other, tokens in (self.played[-1] if self.played else {}).items() if other != agent]
        choice = round(sum(given) / len(given)) if given else self.options.endowment
        return f"I will give {choice}." if self.talking else str(choice)

    def measures(self, agent: str) -> dict[str, float]:
        rounds = [choices for choices in self.played if agent in choices]
        if not rounds:
            return {}
        given = sum(choices[agent] for choices in rounds)
        best = self.options.multiplier * self.options.endowment * self.options.players * len(self.played)
        return {
            "cooperation_rate": given / (self.options.endowment * len(rounds)),
            "social_welfare": social_welfare(list(self.points.values()), best),
        }
