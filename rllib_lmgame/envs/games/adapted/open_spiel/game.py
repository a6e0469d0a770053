"""OpenSpiel's games as games of this package."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import pyspiel

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract import InvalidAction, TextAECOptions, TextTreeGame, Variant
from rllib_lmgame.envs.games.adapted.open_spiel.loading import load_game, shows_information_state
from rllib_lmgame.envs.games.adapted.open_spiel.state import SpielState, read_action

TEXTS = {
    "observation": ("observation_string",),
    "information_state": ("information_state_string",),
    "both": ("information_state_string", "observation_string"),
}
LISTED = 8
"""Actions that a message about an invalid reply lists."""

RULES = """You play {name}, one of {players} players (player 0 to player {last}), as OpenSpiel has it.{at_once}
Reply with one of the legal actions, word for word."""
ALONE = """You play {name}, as OpenSpiel has it.
Reply with one of the legal actions, word for word."""
AT_ONCE = " Players choose at the same time: nobody learns what the others have chosen before all have."


class OpenSpielOptions(TextAECOptions):
    """``env_config`` of OpenSpiel's games."""

    game: str = option(
        "leduc_poker",
        "OpenSpiel's game, as `leduc_poker`, or with its parameters, as `leduc_poker(players=3)`.",
        stranger=is_name,
    )
    parameters: dict[str, Any] = option({}, "Parameters of the game by name, as `{players: 3}`.", stranger=False)
    observation: str = option(
        "auto",
        "What a player is shown: its `observation` (the board), its `information_state` (all it has learnt), or `both`."
        " `auto`: `information_state` if players hide something from each other and the game has one, else "
        "`observation`.",
        choices=("auto", "observation", "information_state", "both"),
    )
    show_legal_actions: bool = option(True, "End each observation with the legal actions.")


class OpenSpielGame(TextTreeGame):
    """Any of some 100 OpenSpiel games (default: Leduc poker).

    Rules, chance and rewards are OpenSpiel's.

    Observation: which player one is, what OpenSpiel says the player can know (its observation or information state in
        words), and the legal actions.
    Action: one of the legal actions as OpenSpiel words them, the whole reply; spaces and, where that is clear, case do
        not matter.
    Reward: OpenSpiel's returns, all of them at the end. -0.1 for an invalid reply, to the offender alone. Three in a
        row forfeit, which costs the game's least utility. In a zero-sum game the others share it, in a cooperative one
        all lose it, and else the others keep what they have got so far.
    Horizon: the game's own. The seed decides what is left to chance; there are no levels, ``split`` changes nothing.
    Agents and roles: ``player_0``, ``player_1`` and so on, OpenSpiel's numbers. Moves that are made at once are asked
        for one after the other and shown to nobody before all are made.
    Success: a positive return, or the best possible one; in a game of several that is neither zero-sum nor
        cooperative, the best return of all, if it is not everybody's.
    Games: those of ``pyspiel.registered_names()`` that say probabilities of their chance and
        describe states in words; others are refused with the reason. Those whose tree is small have
        exact measures (``rllib_lmgame.measures.exploitability``).
    """

    variants = (Variant("lmgame/OpenSpiel-v0", (-13.9, 13.0), players="1-10"),)
    extra = "open_spiel"
    Options: ClassVar[type[TextAECOptions]] = OpenSpielOptions
    options: OpenSpielOptions
    position: SpielState

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        utility = self.spiel.get_type().utility
        self.zero_sum = utility == pyspiel.GameType.Utility.ZERO_SUM
        self.cooperative = utility == pyspiel.GameType.Utility.IDENTICAL
        self._first = SpielState(self.spiel.new_initial_state(), self._texts())

    @cached_property
    def spiel(self) -> Any:
        """OpenSpiel's game."""
        return load_game(self.options.game, self.options.parameters)

    def seat_roles(self) -> dict[str, str]:
        return {f"player_{seat}": f"player_{seat}" for seat in range(self.spiel.num_players())}

    @property
    def rules(self) -> str:
        players = self.spiel.num_players()
        at_once = AT_ONCE if self.spiel.get_type().short_name == "turn_based_simultaneous_game" else ""
        name = self.spiel.get_type().long_name.removeprefix("Turn-based ")
        return (ALONE if players == 1 else RULES).format(name=name, players=players, last=players - 1, at_once=at_once)

    def first_state(self) -> SpielState:
        return self._first

    def start(self) -> None:
        self.position = self._settled(self._first)

    def play_move(self, agent: str, move: Any) -> None:
        self.position = self._settled(self.position.after(move))

    def read_move(self, text: str) -> str:
        actions = self.position.actions
        action = read_action(text, actions)
        if action is None:
            shown = ", ".join(actions[:LISTED]) + ", ..." * (len(actions) > LISTED)
            raise InvalidAction(f"the action must be one of {shown}, word for word.")
        return action

    def forfeit_results(self, agent: str) -> dict[str, float]:
        least = float(self.spiel.min_utility())
        if self.cooperative:
            return dict.fromkeys(self.possible_agents, least)
        if self.zero_sum:
            return {a: least if a == agent else -least / (len(self.roles) - 1) for a in self.possible_agents}
        return dict(zip(self.possible_agents, self.position.payoffs, strict=True)) | {agent: least}

    def won(self, agent: str, results: dict[str, float]) -> bool:
        if self.zero_sum or self.cooperative or len(results) == 1:
            return results[agent] > 0 or results[agent] == self.spiel.max_utility()
        return min(results.values()) < results[agent] == max(results.values())

    def _settled(self, state: SpielState) -> SpielState:
        """The state after chance, of whose outcomes there may be many, has made its decisions."""
        while outcomes := state.outcomes:
            numbers, odds = zip(*outcomes, strict=True)
            state = state.child(self.random.choices(numbers, odds)[0])
        return state

    def _texts(self) -> tuple[str, ...]:
        """What of OpenSpiel's texts players are shown."""
        chosen = self.options.observation
        if chosen == "auto":
            return TEXTS["information_state" if shows_information_state(self.spiel) else "observation"]
        kind = self.spiel.get_type()
        for text in TEXTS[chosen]:
            if not getattr(kind, f"provides_{text}"):
                raise ConfigError("env_config.observation", f"{self.options.game} has no {text}")
        return TEXTS[chosen]
