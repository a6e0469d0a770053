"""TextArena's environments as games of this package: for one player, and for several."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.base.trust import is_name
from rllib_lmgame.envs.contract.base import GameError, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.turns import TextAECGame, TextAECOptions
from rllib_lmgame.envs.games.adapted.text_arena.families import PLAYERS, check_env_id
from rllib_lmgame.envs.games.adapted.text_arena.match import Match, set_up

SEEDS_TRIED = 400
"""Seeds tried for a level of the right split: some environments have one level alone."""

RULES = """You play {name}. The rules are in the first message. Put your move in square brackets, as the rules say; \
a move without brackets is
put in brackets for you."""


class TextArenaOptions(TextGameOptions):
    """``env_config`` of TextArena."""

    env_id: str = option(
        "LightsOut-v0", "TextArena's environment for one player, as `Sudoku-v0-easy`.", stranger=is_name
    )
    max_turns: int = option(200, "Replies per episode; most environments end earlier by limits of their own.", ge=1)
    max_actions_per_turn: int = option(
        1, "Moves per reply: one, since the environment reads the reply as a whole.", ge=1, le=1
    )
    history: bool = option(
        False, "Show everything since the start every time, not only what is new since the last reply."
    )


class TextArenaGame(TextGame):
    """Any offline TextArena environment for one player (default: lights out).

    Observation: the environment's rules at first, then what it says to each reply.
    Action: what its rules ask for, in square brackets.
    Reward: at the end, what TextArena gives: mostly 1 for success, else the part that was achieved (``Bandit``: minus
        the regret). An invalid reply gives -0.1; ``max_invalid_actions`` replaces TextArena's own count, which forgives
        one.
    Horizon: 200 replies, or the environment's own limit.
    Levels: TextArena's, from seeds; how the environment begins decides the split, hidden things included. Where there
        are so few that a split is empty (``TowerOfHanoi-v0`` has one), that is an error: take ``split: all``.
    Environments: 22 families of them, about 60 ids; an id that needs a language model, downloads or a later Python is
        refused with the reason.
    """

    variants = (Variant("lmgame/TextArena-v0", (-13.4, 1.0)),)
    extra = "textarena"
    Options: ClassVar[type[TextGameOptions]] = TextArenaOptions
    solver_wins = False
    options: TextArenaOptions

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        super().__init__(render_mode, **env_config)
        check_env_id(self.options.env_id, solo=True)
        self._drawn: tuple[int, Match] | None = None

    @property
    def rules(self) -> str:
        return RULES.format(name=self.options.env_id.split("-v")[0])

    def levels(self, rng: random.Random) -> Iterator[int]:
        for _ in range(SEEDS_TRIED):
            seed = rng.randrange(2**31)
            match = set_up(self.options.env_id, 1, seed)
            if match is not None:
                self._drawn = (seed, match)
                yield seed

    def level_key(self, level: int) -> str:
        if self._drawn is None or self._drawn[0] != level:
            self._drawn = (level, Match(self.options.env_id, 1, level))
        return f"text_arena {self.options.env_id} {self._drawn[1].fingerprint()}"

    def start(self, level: int) -> None:
        fresh = self._drawn[1] if self._drawn and self._drawn[0] == level else Match(self.options.env_id, 1, level)
        self._match, self._drawn = fresh, None

    def board(self) -> str:
        return self._match.messages(0, self.options.history) or "The game is over."

    def legal_actions(self) -> tuple[str, ...]:
        return () if self._match.done else self._match.listed_moves()

    def read_move(self, text: str) -> str:
        return text

    def play_move(self, move: str) -> float:
        self._match.act(move)
        return self._match.rewards[0] if self._match.done else 0.0

    @property
    def finished(self) -> bool:
        return self._match.done

    @property
    def success(self) -> bool:
        return self._match.done and self._match.rewards[0] >= 1.0


class TextArenaMatchOptions(TextAECOptions):
    """``env_config`` of TextArenaMatch."""

    env_id: str = option(
        "TicTacToe-v0", "TextArena's environment for several players, as `ConnectFour-v0`.", stranger=is_name
    )
    players: int | None = option(None, "Players; null is the fewest the environment takes.", ge=2, le=15)
    history: bool = option(
        False, "Show everything since the start every time, not only what is new since the last reply."
    )


class TextArenaMatch(TextAECGame):
    """Any offline TextArena environment for several players (default: TicTacToe).

    Observation: the environment's rules at first, then what the player has been told since its last reply. Other
        players' words come on lines that begin with their names, so nobody can speak for the game or for another
        player.
    Action: what the rules ask for, in square brackets, or free text where players talk.
    Reward: at the end, what TextArena gives, mostly +1, 0 and -1; -0.1 for an invalid reply, to the offender alone;
        three in a row forfeit (-1, shared out among the others).
    Horizon: the environment's own. The seed decides what is left to chance; there are no levels, ``split`` changes
        nothing.
    Environments: 48 families; an id that needs a language model, downloads or a later Python is
        refused with the reason.
    """

    variants = (Variant("lmgame/TextArenaMatch-v0", (-2.1, 1.0)),)
    extra = "textarena"
    metadata: ClassVar[dict[str, Any]] = {"name": "text_arena_v0", "is_parallelizable": False, "render_modes": ["ansi"]}
    Options: ClassVar[type[TextAECOptions]] = TextArenaMatchOptions
    options: TextArenaMatchOptions
    zero_sum: ClassVar[bool] = False

    def seat_roles(self) -> dict[str, str]:
        family = check_env_id(self.options.env_id, solo=False)
        fewest, most = PLAYERS[family]
        players = fewest if self.options.players is None else self.options.players
        if not fewest <= players <= most:
            takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise ConfigError("env_config.players", f"is {players}; {self.options.env_id} takes {takes}")
        return {f"player_{seat}": f"player_{seat}" for seat in range(players)}

    @property
    def rules(self) -> str:
        return RULES.format(name=self.options.env_id.split("-v")[0])

    def start(self) -> None:
        for _ in range(SEEDS_TRIED):
            match = set_up(self.options.env_id, len(self.possible_agents), self.random.randrange(2**31))
            if match is not None:
                self._match = match
                return
        raise GameError(f"TextArena cannot set up {self.options.env_id} for {len(self.possible_agents)} players")

    def player_to_move(self) -> str:
        return self.possible_agents[self._match.current]

    def view(self, agent: str) -> str:
        return (
            self._match.messages(self.possible_agents.index(agent), self.options.history)
            or "Nothing has happened since."
        )

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return self._match.listed_moves() if not self.finished and agent == self.player_to_move() else ()

    def read_move(self, text: str) -> str:
        return text

    def play_move(self, agent: str, move: str) -> None:
        self._match.act(move)

    @property
    def finished(self) -> bool:
        return self._match.done

    def results(self) -> dict[str, float]:
        return {agent: self._match.rewards[seat] for seat, agent in enumerate(self.possible_agents)}

    def forfeit_results(self, agent: str) -> dict[str, float]:
        return self.lost_by(agent)
