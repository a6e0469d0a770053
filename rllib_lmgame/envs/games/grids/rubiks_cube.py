"""RubiksCube: turn the faces of a 2x2x2 cube until each has one colour."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache, cached_property, reduce
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import level_digest, split_few

Vector = tuple[int, int, int]
"""Right, up, and towards the player."""

FACES: dict[str, tuple[Vector, Vector]] = {
    "U": ((0, 1, 0), (0, 0, 1)),
    "F": ((0, 0, 1), (0, -1, 0)),
    "R": ((1, 0, 0), (0, -1, 0)),
    "B": ((0, 0, -1), (0, -1, 0)),
    "L": ((-1, 0, 0), (0, -1, 0)),
    "D": ((0, -1, 0), (0, 0, -1)),
}
"""Where each face looks, and where down in the net points on it; in the order of the net."""

SOLVED = "WWWWGGGGRRRRBBBBOOOOYYYY"
"""A cube is its 24 colours, face by face, each in reading order."""

OPPOSITE = dict(zip("WGRBOY", "YBOGRW", strict=True))
SOLVED_REWARD = 1.0
FEW_TURNS = 2
"""Up to this many turns all levels are listed and split by rank."""

NEAR = 6
"""Distance up to which all cubes are known, 11,913 of them; from a cube further away a search goes on to these."""

RULES = """You turn the faces of a 2x2x2 cube until each face has one colour, whichever.
You see the cube unfolded: the up face, below it the front, right, back and left faces side by side, then the down face.
W white, G green, R red, B blue, O orange, Y yellow.
U, D, L, R, F, B turn the up, down, left, right, front or back face a quarter clockwise, as seen from outside; with ' \
(as U') counterclockwise. {moves}
There are {turns} turns{total}. Solving the cube gives 1."""


def dot(a: Vector, b: Vector) -> int:
    """The scalar product."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def crossed(a: Vector, b: Vector) -> Vector:
    """The cross product."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def quarter(at: Vector, axis: Vector) -> Vector:
    """``at`` after a quarter turn, clockwise as seen from the end of ``axis``."""
    along = dot(at, axis)
    x, y, z = (along * a - c for a, c in zip(axis, crossed(axis, at), strict=True))
    return x, y, z


def all_turns() -> dict[str, tuple[int, ...]]:
    """The twelve turns: name -> for each of the 24 places the one whose colour comes there."""
    stickers: list[tuple[Vector, Vector]] = []
    for normal, down in FACES.values():
        right = crossed(normal, down)
        for below, beside in itertools.product((-1, 1), repeat=2):
            x, y, z = (n + below * d + beside * r for n, d, r in zip(normal, down, right, strict=True))
            stickers.append(((x, y, z), normal))
    turns: dict[str, tuple[int, ...]] = {}
    for name in "UDLRFB":
        axis = FACES[name][0]
        to = [
            stickers.index((quarter(corner, axis), quarter(normal, axis))) if dot(corner, axis) > 0 else place
            for place, (corner, normal) in enumerate(stickers)
        ]
        turns[name] = tuple(to.index(place) for place in range(len(stickers)))
        turns[f"{name}'"] = tuple(to)
    return turns


TURNS = all_turns()
FIXED = tuple(i for i in range(len(SOLVED)) if all(TURNS[name][i] == i for name in "URF"))
"""Places of the corner that the turns of U, R and F leave where it is."""

SOLVER_TURNS = ("U", "U'", "R", "R'", "F", "F'")
"""Turning D, L or B is turning U, R or F and the cube as a whole: for a shortest solution these six are enough."""


def turned(cube: str, turn: str) -> str:
    """The cube after a turn."""
    return "".join([cube[place] for place in TURNS[turn]])


def is_solved(cube: str) -> bool:
    """Whether each face has one colour."""
    return all(len({*cube[i : i + 4]}) == 1 for i in range(0, len(cube), 4))


@cache
def orientations() -> tuple[str, ...]:
    """The solved cube in each of the 24 ways to hold it."""
    found = [SOLVED]
    for cube in found:
        for one, other in (("U", "D'"), ("R", "L'")):
            held = turned(turned(cube, one), other)
            found += [held] * (held not in found)
    return tuple(found)


def recoloured(cube: str) -> str:
    """The cube with its colours renamed so that the corner at :data:`FIXED` looks solved: one that is solved, however
    it is held, is :data:`SOLVED`.
    """
    names = {cube[place]: SOLVED[place] for place in FIXED}
    names |= {OPPOSITE[old]: OPPOSITE[new] for old, new in names.items()}
    return cube.translate(str.maketrans("".join(names), "".join(names.values())))


@cache
def near_cubes() -> dict[str, int]:
    """Turns to the solution of every recoloured cube up to :data:`NEAR` turns away, by breadth-first search."""
    found, layer = {SOLVED: 0}, [SOLVED]
    for distance in range(1, NEAR + 1):
        ahead = {turned(cube, turn) for cube in layer for turn in SOLVER_TURNS}
        layer = [cube for cube in ahead if cube not in found]
        found |= dict.fromkeys(layer, distance)
    return found


def shortest_turns(cube: str) -> list[str]:
    """Fewest quarter turns (14 at most) after which each face has one colour, all of :data:`SOLVER_TURNS`.

    A breadth-first search that stops at the first cube of :func:`near_cubes`.
    """
    near, layer = near_cubes(), {recoloured(cube): list[str]()}
    seen = set(layer)
    while not (met := next((each for each in layer if each in near), None)):
        ahead: dict[str, list[str]] = {}
        for each, path in layer.items():
            for turn in SOLVER_TURNS:
                after = turned(each, turn)
                if after not in seen:
                    seen.add(after)
                    ahead[after] = [*path, turn]
        layer = ahead
    path = layer[met]
    for distance in reversed(range(near[met])):
        turn, met = next(
            (turn, after) for turn in SOLVER_TURNS if near.get(after := turned(met, turn), NEAR + 1) == distance
        )
        path.append(turn)
    return path


def scrambled(rng: random.Random, cube: str, turns: int) -> str | None:
    """The cube after random turns, each of which takes it one turn further from its solution.

    ``None`` if the turns drawn lead to a cube from which none does.
    """
    for distance in range(1, turns + 1):
        after = (turned(cube, turn) for turn in rng.sample([*TURNS], len(TURNS)))
        further = next((each for each in after if len(shortest_turns(each)) == distance), None)
        if further is None:
            return None
        cube = further
    return cube


class RubiksCubeOptions(TextGameOptions):
    """``env_config`` of RubiksCube."""

    max_turns: int = option(20, "Replies per episode.", ge=1)
    scramble: int = option(3, "Quarter turns that scramble the solved cube.", ge=1, le=11)
    may_undo: bool = option(
        False,
        "Draw the turns of a scramble freely, so that they may undo each other and a shorter solution may do (SCOUT). "
        "Otherwise the shortest solution has `scramble` turns.",
    )
    any_orientation: bool = option(
        False, "Scramble the cube from any of the 24 ways to hold it; otherwise white is up and green in front."
    )


class RubiksCube(TextGame):
    """Solve a 2x2x2 cube that a few turns have scrambled.

    Observation: the net of the cube in six lines, a letter for each colour: two lines for the up face, two for front,
        right, back and left side by side, two for the down face.
    Action: ``U``, ``D``, ``L``, ``R``, ``F`` or ``B``, a quarter turn clockwise, or with ``'`` counterclockwise.
    Reward: 1 when each face has one colour, however the cube is held; else 0. -0.1 for a reply that cannot be read.
    Horizon: 20 replies of one turn. Turns, reward and limit are those of SCOUT (arXiv 2601.21754).
    Levels: ``scramble`` random turns of the solved cube, white up and green in front. No scramble undoes a part of
        itself, also not by turning the cube as a whole (U and D'): the shortest solution has as many turns. With
        ``may_undo`` turns are drawn freely, and a scramble that solves itself is drawn anew. There are 12 levels of one
        turn, 108 of two, 864 of three and 6,144 of four (with ``any_orientation`` 144, 648, 2,880 and 12,816). Up to
        two turns they are split by rank of their hash: of one turn 10, 1 and 1, so that an evaluation repeats one
        level (``split: all`` plays all twelve).
    Solver: breadth-first from both ends, fewest turns; it turns only U, R and F.
    """

    variants = (Variant("lmgame/RubiksCube-v0", (-1.4, 1.0)),)
    Options: ClassVar[type[TextGameOptions]] = RubiksCubeOptions
    options: RubiksCubeOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        if self.options.scramble > self.moves_in_all:
            raise ConfigError(
                "env_config.scramble",
                f"{self.options.scramble} turns cannot be undone in {self.moves_in_all} moves; lower it or raise "
                "max_turns, max_actions",
            )

    @property
    def rules(self) -> str:
        return RULES.format(moves=self.moves_rule(("R", "U'")), turns=self.options.max_turns, total=self.total_rule())

    @property
    def success(self) -> bool:
        return is_solved(self._cube)

    def levels(self, rng: random.Random) -> Iterator[str]:
        chosen = self.options
        while True:
            start = rng.choice(orientations()) if chosen.any_orientation else SOLVED
            if chosen.may_undo:
                cube: str | None = reduce(turned, rng.choices([*TURNS], k=chosen.scramble), start)
            else:
                cube = scrambled(rng, start, chosen.scramble)
            if cube is not None and not is_solved(cube):
                yield cube

    def level_key(self, level: str) -> str:
        return f"rubiks_cube {level}"

    def split_of_level(self, digest: str, level: str) -> str:
        few = self.options.scramble <= FEW_TURNS
        return self._few_splits[digest] if few else super().split_of_level(digest, level)

    def start(self, level: str) -> None:
        self._cube = level

    def board(self) -> str:
        faces = [self._cube[i : i + 4] for i in range(0, len(self._cube), 4)]
        rows = [[face[i : i + 2] for face in faces[1:5]] for i in (0, 2)]
        return "\n".join((faces[0][:2], faces[0][2:], *map("".join, rows), faces[5][:2], faces[5][2:]))

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(TURNS)

    def read_move(self, text: str) -> str:
        name = text.rstrip(".").replace("’", "'").upper()
        if name not in TURNS:
            raise InvalidAction(f"each move must be one of {', '.join(TURNS)}.")
        return name

    def play_move(self, name: str) -> float:
        self._cube = turned(self._cube, name)
        return SOLVED_REWARD if self.success else 0.0

    def solve(self) -> list[str]:
        return shortest_turns(self._cube)

    @cached_property
    def _few_splits(self) -> dict[str, str]:
        starts = orientations() if self.options.any_orientation else (SOLVED,)
        cubes = set(starts)
        for _ in range(self.options.scramble):
            cubes = {turned(cube, turn) for cube in cubes for turn in TURNS}
        keys = [self.level_key(cube) for cube in cubes if len(shortest_turns(cube)) == self.options.scramble]
        return {level_digest(key): split for key, split in split_few(keys).items()}
