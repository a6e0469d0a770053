"""What all games share: options, budgets, invalid actions, observations.

A game for one is a :class:`TextGame` (a ``gymnasium.Env`` whose observation and action are texts). A game in which
players take turns is a :class:`~rllib_lmgame.envs.contract.turns.TextAECGame`, one in which all reply at once a
:class:`~rllib_lmgame.envs.contract.simultaneous.TextParallelGame`. All keep these guarantees, each tested:

1. No action text raises. One that is illegal, cannot be read or says two different moves where one is asked for costs
   ``invalid_action_penalty``, sets ``info["invalid_action"]`` and is explained in the next observation.
2. ``max_invalid_actions`` of them in a row end the player's game: ``terminated``, as a forfeit, which costs no less
   than the moves left. In games for several players it ends everybody's, unless the game lets the others play on.
3. Running out of turns or actions is ``truncated`` (``terminated`` where the number of tries is a rule of the game);
   never both.
4. ``info["success"]`` is set at the end of every player's game, which may come before that of the others.
5. ``reset(seed=s)`` is a pure function of ``s`` and the options; and all that follows one of these and the replies,
   but for clocks, other processes and code of others.
"""

from __future__ import annotations

import random
import string
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

from rllib_lmgame.base.group import Group, build, option
from rllib_lmgame.envs.contract.referee import MAX_TEXT as MAX_TEXT
from rllib_lmgame.envs.contract.referee import InvalidAction as InvalidAction
from rllib_lmgame.envs.contract.referee import Referee, reply_text
from rllib_lmgame.envs.contract.splits import SPLIT_CHOICES, choose_level, split_of_digest

MAX_QUOTED = 1_000
"""Longest text of another player that is shown, in characters: so that nobody can talk the game's own words out
of an observation.
"""

SEPARATOR = "||"


class GameError(RuntimeError):
    """A game broke its contract (it raised, gave a reward that is no number, a wrong type ...)."""


class GameOptions(Group):
    """``env_config`` keys of every game."""

    split: str = option(
        "train",
        "Levels to play: `train`, `validation` and `test` never share a level; `all` does not filter.",
        choices=SPLIT_CHOICES,
    )
    show_rules: bool = option(True, "Begin the first observation with the rules and the legend.")
    show_legal_actions: bool = option(False, "End each observation with the legal actions.")
    invalid_action_penalty: float = option(-0.1, "Reward of an action that is illegal or cannot be read.", le=0)
    max_invalid_actions: int | None = option(
        3, "Invalid actions in a row that end the episode as a forfeit; null never ends it.", ge=1
    )


class TextGameOptions(GameOptions):
    """``env_config`` keys of every game for one player."""

    max_turns: int = option(10, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(
        1,
        "Moves per reply, joined by `||`; what goes beyond is not played. With 1, different moves in one reply "
        "are invalid.",
        ge=1,
    )
    max_actions: int | None = option(None, "Moves per episode; null is no limit.", ge=1)


@dataclass(frozen=True)
class Variant:
    """An id under which this package lists a game, with what cannot be seen from the class.

    Attributes:
        game_id: ``lmgame/NAME-v0``.
        reward_range: Smallest and largest return of one player that can come about.
        summary: One line; by default the first one of the class's docstring.
        defaults: ``env_config`` values that make the variant.
        players: Number of players, as text, where no option ``players`` says it.
    """

    game_id: str
    reward_range: tuple[float, float]
    summary: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    players: str = ""


def seeded(seed: int, purpose: str) -> random.Random:
    """A generator of its own for ``purpose``, so that a player seeded with the same number shares no
    chance with the game.
    """
    return random.Random(f"{purpose} {seed}")


class AnyText(spaces.Text):
    """Texts of any characters up to ``max_length``; samples are printable ASCII.

    ``gymnasium.spaces.Text`` holds only the characters of a fixed set, but games quote data and replies in any script.
    """

    def __init__(self, max_length: int = MAX_TEXT) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


def check_written(game: Any) -> None:
    """Gymnasium's and PettingZoo's classes are no abstract ones, so Python does not say what a game lacks.

    Raises: GameError: names the members that ``game`` must write and does not.
    """
    missing = [name for name in dir(game) if getattr(getattr(game, name, None), "__isabstractmethod__", False)]
    if missing:
        raise GameError(f"{game.__name__} must write {', '.join(missing)}")


def text_space() -> AnyText:
    """Space of observations and actions."""
    return AnyText()


def read_options(cls: type[Any], values: dict[str, Any]) -> Any:
    """Options of a game from its ``env_config``; errors carry the key as ``env_config.<key>``."""
    return build(cls, values, path="env_config")


def read_word(text: str, words: Sequence[str], what: str) -> str:
    """The one of ``words`` that ``text`` says, whatever its case and closing full stop.

    Raises: InvalidAction: if it says none of them, or two different ones.
    """
    by_lower = {word.lower(): word for word in words}
    tokens = [token.strip(".,;:!\"'`()[]").lower() for token in text.replace(SEPARATOR, " ").split()]
    said = {token for token in tokens if token}
    choices = ", ".join(words)
    if not said or not said <= by_lower.keys():
        raise InvalidAction(f"{what} must be one of {choices}.")
    if len(said) > 1:
        raise InvalidAction(f"only one {what} is allowed, one of {choices}.")
    return by_lower[said.pop()]


def invalid_rule(options: GameOptions, replies: int | None = None, forfeit: str = "forfeit the game") -> str:
    """What an invalid reply costs, and how many of them in a row end the game, in a sentence for the player.

    Args:
        options: Those of the game.
        replies: Replies an episode has, if that is fixed.
        forfeit: What several in a row do.
    """
    costs = f"costs {-options.invalid_action_penalty:g}" if options.invalid_action_penalty else "is lost"
    limit = options.max_invalid_actions
    if limit is None or (replies is not None and limit >= replies):
        ending = "."
    else:
        ending = " and ends the game." if limit == 1 else f"; {limit} in a row {forfeit}."
    return f"A reply that cannot be read or is not allowed {costs}{ending}"


def observation_text(parts: Sequence[str]) -> str:
    """The parts of an observation, one below the other, empty ones left out."""
    return "\n".join(part for part in parts if part)[:MAX_TEXT]


def quoted(speaker: str, text: str) -> str:
    """What another player said, for an observation: every line of it begins with who said it.

    Whatever ends a line anywhere (Unicode's separators included) ends one here, control characters and those that turn
    the direction of writing become spaces, and more than :data:`MAX_QUOTED` characters are cut. So no line of ``text``
    can pass for one of the game or of another speaker. Every game that shows players each other's free words shows them
    through this function.

    Args:
        speaker: Name the game gives the player, on one line.
        text: The player's words, of any kind.
    """
    said = text[:MAX_QUOTED] + "…" * (len(text) > MAX_QUOTED)
    lines = ["".join(mark if mark.isprintable() else " " for mark in line).rstrip() for line in said.splitlines()]
    return "\n".join(f"[{speaker}] {line}" for line in lines if line) or f"[{speaker}]"


class TextGame(gymnasium.Env[str, str]):
    """A game for one player, played in text.

    A game derives from it, sets ``Options`` and writes the methods below that are abstract. ``env_config`` keys are
    the constructor's keyword arguments.

    Raises: ConfigError: for an unknown key or an impossible value.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}
    variants: ClassVar[tuple[Variant, ...]] = ()
    """Ids of a game of this package; a class does not inherit them."""
    extra: ClassVar[str | None] = None
    """Extra of this package that installs what the game needs."""
    Options: ClassVar[type[TextGameOptions]] = TextGameOptions
    rules_text: ClassVar[str] = ""
    """The :attr:`rules`, where they say nothing of the options but ``{turns}``."""
    agent_id = "player"
    roles: ClassVar[dict[str, str]] = {"player": "player"}
    has_levels: ClassVar[bool] = True
    """Whether the seed picks a level that must belong to one split alone."""
    lists_levels: ClassVar[bool | str] = False
    """Levels are items of a list, and consecutive seeds are items in an order, as in games that derive from
    :class:`~rllib_lmgame.envs.support.listed_levels.ListedLevels`: in a run each is played once before any is played
    again, and ``info["num_levels"]`` says how many there are. The name of an option: where that is given.
    """
    turns_are_tries: ClassVar[bool] = False
    """The number of turns is a rule of the game, so that running out of them ends it (``terminated``) and
    cuts nothing short.
    """
    move_cost: ClassVar[float] = 0.0
    """What every move costs. A forfeit costs as much as the moves left, so that giving up is never
    better than playing on.
    """
    real_levels: ClassVar[tuple[str, str]] = ("", "")
    """Option that names published levels, and what these are: without it the game makes up levels like them."""
    slow_calls: bool = False
    """A call may take long: it starts a process, asks another program, or searches deep. So it is made in a thread of
    its own, with a time limit, and no other game waits for it. Sessions of the game are then used from several threads
    at once, each from one at a time."""
    uses_sandbox: ClassVar[bool] = False
    """The game runs what players write (see docs/trust.md)."""

    def __init__(self, render_mode: str | None = None, **env_config: Any) -> None:
        check_written(type(self))
        self.options: Any = read_options(self.Options, env_config)
        self.render_mode = render_mode
        self.observation_space = text_space()
        self.action_space = text_space()
        self.random = random.Random(0)
        chosen = self.options
        self.referee = Referee(
            (self.agent_id,), chosen.invalid_action_penalty, chosen.max_invalid_actions, chosen.max_turns
        )
        self._in_play = False
        self._actions = 0
        self._level_digest = self._category = ""
        self._said = ""
        """What came of the last reply, for a game whose board tells it; empty after an invalid one."""

    @property
    def rules(self) -> str:
        """Rules and legend; :attr:`instructions` adds what becomes of an invalid reply."""
        return self.rules_text.format(turns=self.options.max_turns)

    @property
    def instructions(self) -> str:
        """All a player is told, for the system prompt or the first observation."""
        forfeit = "forfeit the game" + " and cost as much as the moves left" * bool(self.move_cost)
        return f"{self.rules}\n{invalid_rule(self.options, self.options.max_turns, forfeit)}" if self.rules else ""

    @abstractmethod
    def levels(self, rng: random.Random) -> Iterator[Any]:
        """Endless candidates for the level; the first one in the right split is played."""

    @abstractmethod
    def level_key(self, level: Any) -> str:
        """Everything that tells this level from another one."""

    @abstractmethod
    def start(self, level: Any) -> None:
        """Put ``level`` on the board."""

    @abstractmethod
    def board(self) -> str:
        """The state, as the player sees it."""

    @abstractmethod
    def legal_actions(self) -> tuple[str, ...]:
        """Moves that may be made now, as texts."""

    @abstractmethod
    def read_move(self, text: str) -> Hashable:
        """The move that ``text`` (without ``||``) says. Raises: InvalidAction: if it says none."""

    @abstractmethod
    def play_move(self, move: Any) -> float:
        """Make a move; returns its reward.

        Raises: InvalidAction: if the move is not allowed now; the state must then be as it was.
        """

    @property
    @abstractmethod
    def success(self) -> bool:
        """The goal is reached."""

    @property
    def finished(self) -> bool:
        """The game is over by its own rules (by default: the goal is reached, or no try is left)."""
        return self.success or (self.turns_are_tries and self._turns_left() <= 0)

    @property
    def solver_wins(self) -> bool:
        """Following :meth:`solve` always reaches the goal (not so where chance has a say)."""
        return True

    def solve(self) -> list[str] | None:
        """Moves from here to the goal, the fewest possible, or ``None`` if there is no way (or no solver)."""
        return None

    def split_of_level(self, digest: str, level: Any) -> str:
        """Split a level belongs to, by default by its hash."""
        return split_of_digest(digest)

    def category(self, level: Any) -> str:
        """What kind of level it is: evaluations have a row for each. Empty where the game tells none."""
        return ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the level of ``seed`` (without one: of the next seed of the environment's generator)."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        level, self._level_digest = self.level_of_seed(seed)
        self.referee.begin()
        self._actions = 0
        self._said = ""
        self.start(level)
        self._category = self.category(level)
        self._in_play = True
        rules = self.instructions if self.options.show_rules else ""
        return self._observe(rules), self._info(invalid=False)

    def level_of_seed(self, seed: int) -> tuple[Any, str]:
        """The level of ``seed``, and its digest; it is not started."""
        self.random = seeded(seed, "game")
        return choose_level(self.levels(self.random), self.options.split, self.level_key, self.split_of_level)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One reply: one move or several joined by ``||``."""
        if not self._in_play:
            raise GameError("the episode is over; call reset() before step()")
        self.referee.count(self.agent_id)
        self._said = ""
        reward, note, problem = self._play(action)
        ruling = self.referee.rule(self.agent_id, problem)
        reward += ruling.penalty
        if ruling.forfeit and self.move_cost:
            reward -= self.move_cost * self._moves_left()
        terminated = self.finished or ruling.forfeit
        truncated = not terminated and (self._turns_left() <= 0 or self._actions_left() == 0)
        info = self._info(ruling.invalid)
        if terminated or truncated:
            self._in_play = False
            info["success"] = bool(self.success)
            info["forfeit"] = ruling.forfeit
            if measures := self.measures():
                info["measures"] = dict(measures)
        return self._observe(ruling.note or note), float(reward), terminated, truncated, info

    def expert_action(self) -> str | None:
        """The solver's next reply (as many moves as one reply may hold), or ``None`` without a solver.

        Where the position is lost it is the first legal move, so that a game can be played to its end.
        """
        if type(self).solve is TextGame.solve:
            return None
        path = self.solve()
        moves = path[: self.options.max_actions_per_turn] if path else list(self.legal_actions()[:1])
        return f" {SEPARATOR} ".join(moves) if moves else None

    def expert_thought(self) -> str | None:
        """The reasoning that leads to :meth:`expert_action`, if the game can tell it: what a reasoning model is taught
        to write before its answer.
        """
        return None

    def measures(self) -> Mapping[str, float]:
        """Numbers of the episode worth an average beside return and success; asked for at its end, for
        ``info["measures"]``. Names are made of letters, digits and ``_``, numbers are finite.
        """
        return {}

    def render(self) -> str:
        """The board as text."""
        return self.board()

    def _play(self, action: Any) -> tuple[float, str, InvalidAction | None]:
        """Reward, note for the player and problem of one reply."""
        reward = 0.0
        try:
            moves = self._read(action)
        except InvalidAction as problem:
            return reward, "", problem
        played = 0
        for move in moves[: self.options.max_actions_per_turn]:
            played += 1
            self._actions += 1
            try:
                reward += self.play_move(move)
            except InvalidAction as problem:
                return reward, "", problem
            if self.finished or self._actions_left() == 0:
                break
        cut = played < len(moves) and not self.finished
        return reward, f"Only the first {played} of {len(moves)} moves were made." if cut else "", None

    def _read(self, action: Any) -> list[Any]:
        """All moves of a reply: it is read as a whole before the first move is made."""
        moves = [self.read_move(part) for part in self.split_reply(reply_text(action))]
        if self.options.max_actions_per_turn == 1 and len(set(moves)) > 1:
            raise InvalidAction("only one move is allowed in a reply.")
        return moves

    def split_reply(self, reply: str) -> list[str]:
        """The texts of the single moves of a reply."""
        return [part.strip() for part in reply.split(SEPARATOR)]

    def _turns_left(self) -> int:
        return self.referee.turns_left(self.agent_id) or 0

    def _actions_left(self) -> int | None:
        return None if self.options.max_actions is None else int(self.options.max_actions - self._actions)

    @property
    def moves_in_all(self) -> int:
        """Moves an episode has at most."""
        moves = int(self.options.max_turns * self.options.max_actions_per_turn)
        return moves if self.options.max_actions is None else min(moves, self.options.max_actions)

    def total_rule(self, what: str = "move") -> str:
        """The limit of moves, to follow the number of turns in the rules; empty where there is none."""
        return "" if self.options.max_actions is None else f" and {self.options.max_actions} {what}s in all"

    def _moves_left(self) -> int:
        moves = self._turns_left() * int(self.options.max_actions_per_turn)
        left = self._actions_left()
        return moves if left is None else min(moves, left)

    def moves_rule(self, example: Sequence[str], what: str = "move") -> str:
        """How many moves a reply may hold, in a sentence for the player."""
        most = self.options.max_actions_per_turn
        shown = f" {SEPARATOR} ".join(example[:most])
        many = f"Up to {most} {what}s per reply, joined by {SEPARATOR}" if most > 1 else f"One {what} per reply"
        return f"{many}, for example: {shown}."

    def _observe(self, note: str) -> str:
        legal = self.legal_actions() if self.options.show_legal_actions and not self.finished else ()
        return observation_text((note, self.board(), "Legal actions: " + ", ".join(legal) if legal else ""))

    def _info(self, invalid: bool) -> dict[str, Any]:
        return {
            "invalid_action": invalid,
            "legal_actions": () if self.finished else self.legal_actions(),
            "turns_left": self._turns_left(),
            "actions_taken": self._actions,
            "level": self._level_digest,
            **({"category": self._category} if self._category else {}),
        }
