"""Blocksworld: restack blocks, one at a time, until they stand as asked."""

from __future__ import annotations

import heapq
import itertools
import random
import re
from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import option
from rllib_lmgame.envs.contract.base import InvalidAction, TextGame, TextGameOptions, Variant
from rllib_lmgame.envs.contract.splits import level_digest, split_few

Stacks = tuple[int, ...]
"""Support of block 1, 2, ...: a block's number, or 0 for the table."""

MOVE_REWARD, GOAL_REWARD = -1.0, 10.0
FEW_BLOCKS = 3
"""Up to this many blocks all levels are listed and split by rank."""

MOVE = re.compile(r"\(\s*move\s+(\d{1,2})\s+to\s+(\d{1,2})\s*\)", re.IGNORECASE)

RULES = """You restack blocks until they stand as the goal says. Blocks are numbered from 1 to {blocks}.
A move is (move X to Y): block X, with nothing on it, goes onto block Y, with nothing on it; Y = 0 is the table.
{moves}
There are {turns} turns{total}. Each move costs 1, reaching the goal gives 10. \
A move that is not possible costs 1 too, ends the reply and is
counted as an invalid one.{legend}"""
LEGENDS = {
    "text": "",
    "1d": "\nA list gives what each block stands on, block 1 first; 0 is the table.",
    "2d": "\nEach column is a stack; the lowest row stands on the table; a dot is empty space.",
}


class BlocksworldOptions(TextGameOptions):
    """``env_config`` of Blocksworld."""

    max_turns: int = option(11, "Replies per episode.", ge=1)
    max_actions_per_turn: int = option(5, "Moves per reply, joined by `||`; what goes beyond is not played.", ge=1)
    max_actions: int | None = option(20, "Moves per episode; null is no limit.", ge=1)
    invalid_action_penalty: float = option(-5.0, "Reward of a reply that cannot be read.", le=0)
    num_blocks: int = option(3, "Blocks.", ge=2, le=6)
    min_distance: int = option(1, "Moves the shortest solution has at least.", ge=1)
    observation: str = option("text", "Sentences, the list of supports, or a drawing.", choices=("text", "1d", "2d"))


class Blocksworld(TextGame):
    """Turn one arrangement of blocks into another.

    Observation: state and goal, as sentences (``text``), lists of supports (``1d``) or drawings of the stacks (``2d``).
    Action: ``(move X to Y)``, several joined by ``||``; ``Y = 0`` is the table.
    Reward: -1 a move, -5 for a reply that cannot be read, +10 at the goal (so a solution of one move earns 9). A move
        that is well-formed but not possible (a block under another one) costs -1, counts as invalid and ends the reply;
        a forfeit costs the moves left.
    Horizon: 11 replies of up to 5 moves, 20 moves in all. Rewards and formats are those of GRL.
    Levels: two different random arrangements. With up to three blocks there are so few (6 and 156) that they are split
        by rank of their hash, so that no split is empty.
    Solver: A* with the number of blocks that must move, optimal in moves.
    """

    variants = (
        Variant("lmgame/Blocksworld-v0", (-55.0, 9.0), "Restack three blocks into a goal."),
        Variant(
            "lmgame/Blocksworld1d-v0", (-55.0, 9.0), "Blocksworld told as lists of supports.", {"observation": "1d"}
        ),
        Variant("lmgame/Blocksworld2d-v0", (-55.0, 9.0), "Blocksworld drawn as stacks.", {"observation": "2d"}),
        Variant("lmgame/BlocksworldLarge-v0", (-55.0, 9.0), "Blocksworld with six blocks.", {"num_blocks": 6}),
    )
    Options: ClassVar[type[TextGameOptions]] = BlocksworldOptions
    move_cost = -MOVE_REWARD
    options: BlocksworldOptions

    def __init__(self, render_mode: str | None = None, **env_config: object) -> None:
        super().__init__(render_mode, **env_config)
        chosen = self.options
        if chosen.min_distance > min(self.moves_in_all, 2 * chosen.num_blocks - 2):
            raise ConfigError(
                "env_config.min_distance",
                f"no level of {chosen.num_blocks} blocks needs {chosen.min_distance} moves within the budget; lower it",
            )

    @property
    def rules(self) -> str:
        chosen = self.options
        return RULES.format(
            blocks=chosen.num_blocks,
            moves=self.moves_rule(("(move 2 to 0)", "(move 1 to 2)")),
            turns=chosen.max_turns,
            total=self.total_rule(),
            legend=LEGENDS[chosen.observation],
        )

    @property
    def success(self) -> bool:
        return self._stacks == self._goal

    def levels(self, rng: random.Random) -> Iterator[tuple[Stacks, Stacks]]:
        chosen = self.options
        tight = chosen.min_distance > 1 or self.moves_in_all < 2 * chosen.num_blocks - 2
        while True:
            start, goal = random_stacks(rng, chosen.num_blocks), random_stacks(rng, chosen.num_blocks)
            if start != goal and (
                not tight or chosen.min_distance <= len(shortest_moves(start, goal)) <= self.moves_in_all
            ):
                yield start, goal

    def level_key(self, level: tuple[Stacks, Stacks]) -> str:
        return level_key(*level)

    def split_of_level(self, digest: str, level: tuple[Stacks, Stacks]) -> str:
        if self.options.num_blocks <= FEW_BLOCKS:
            return self._few_splits[digest]
        return super().split_of_level(digest, level)

    def start(self, level: tuple[Stacks, Stacks]) -> None:
        self._stacks, self._goal = level

    def board(self) -> str:
        show = {"text": sentences, "1d": lambda stacks: str(list(stacks)), "2d": drawing}[self.options.observation]
        between = "\n" if self.options.observation == "2d" else " "
        return f"State:{between}{show(self._stacks)}\nGoal:{between}{show(self._goal)}"

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(move_text(*move) for move in possible_moves(self._stacks))

    def read_move(self, text: str) -> tuple[int, int]:
        match = MOVE.fullmatch(text.rstrip("."))
        if match is None:
            raise InvalidAction("each move must read (move X to Y); several are joined by ||.")
        return int(match[1]), int(match[2])

    def play_move(self, move: tuple[int, int]) -> float:
        if move not in possible_moves(self._stacks):
            raise InvalidAction(f"{move_text(*move)} is not possible now.", penalty=MOVE_REWARD)
        self._stacks = after_move(self._stacks, move)
        return MOVE_REWARD + (GOAL_REWARD if self.success else 0.0)

    def solve(self) -> list[str] | None:
        return [move_text(*move) for move in shortest_moves(self._stacks, self._goal)]

    @cached_property
    def _few_splits(self) -> dict[str, str]:
        pairs = itertools.permutations(all_stacks(self.options.num_blocks), 2)
        least = self.options.min_distance
        keys = [level_key(*pair) for pair in pairs if least == 1 or len(shortest_moves(*pair)) >= least]
        if len(keys) < 3:
            raise ConfigError("env_config.min_distance", "leaves too few levels to split; lower it or take split 'all'")
        return {level_digest(key): split for key, split in split_few(keys).items()}


def level_key(start: Stacks, goal: Stacks) -> str:
    """Text that tells one level from another."""
    return f"blocksworld {list(start)} {list(goal)}"


def move_text(block: int, support: int) -> str:
    """The action as a player types it."""
    return f"(move {block} to {support})"


def possible_moves(stacks: Stacks) -> list[tuple[int, int]]:
    """Moves (block, support) that change something."""
    clear = [block for block in range(1, len(stacks) + 1) if block not in stacks]
    onto = [(block, support) for block in clear for support in clear if support != block]
    return sorted(onto + [(block, 0) for block in clear if stacks[block - 1]])


def after_move(stacks: Stacks, move: tuple[int, int]) -> Stacks:
    """The arrangement after a possible move."""
    block, support = move
    return (*stacks[: block - 1], support, *stacks[block:])


def random_stacks(rng: random.Random, blocks: int) -> Stacks:
    """A random arrangement: the blocks in random order, each onto a random stack or the table."""
    supports = [0] * blocks
    tops: list[int] = []
    for block in rng.sample(range(1, blocks + 1), blocks):
        place = rng.randrange(len(tops) + 1)
        if place == len(tops):
            tops.append(block)
        else:
            supports[block - 1] = tops[place]
            tops[place] = block
    return tuple(supports)


def all_stacks(blocks: int) -> list[Stacks]:
    """All arrangements: 3, 13, 73, 501 and 4051 for 2 to 6 blocks."""
    found = {(0,) * blocks}
    frontier = list(found)
    while frontier:
        fresh = {after_move(stacks, move) for stacks in frontier for move in possible_moves(stacks)} - found
        found |= fresh
        frontier = list(fresh)
    return sorted(found)


def misplaced(stacks: Stacks, goal: Stacks) -> int:
    """Blocks that do not stand on what they shall stand on, all the way down: each must move once at least."""
    settled: dict[int, bool] = {0: True}

    def is_settled(block: int) -> bool:
        if block not in settled:
            support = stacks[block - 1]
            settled[block] = support == goal[block - 1] and is_settled(support)
        return settled[block]

    return sum(not is_settled(block) for block in range(1, len(stacks) + 1))


def shortest_moves(start: Stacks, goal: Stacks) -> list[tuple[int, int]]:
    """Fewest moves from ``start`` to ``goal``, by A*; every goal can be reached."""
    queue: list[tuple[int, int, Stacks]] = [(misplaced(start, goal), 0, start)]
    came: dict[Stacks, tuple[Stacks, tuple[int, int]] | None] = {start: None}
    cost = {start: 0}
    while queue:
        _, depth, stacks = heapq.heappop(queue)
        depth = -depth
        if stacks == goal:
            break
        if depth > cost[stacks]:
            continue
        for move in possible_moves(stacks):
            ahead = after_move(stacks, move)
            if depth + 1 < cost.get(ahead, depth + 2):
                cost[ahead] = depth + 1
                came[ahead] = (stacks, move)
                heapq.heappush(queue, (depth + 1 + misplaced(ahead, goal), -(depth + 1), ahead))
    path: list[tuple[int, int]] = []
    step = came[goal]
    while step is not None:
        path.append(step[1])
        step = came[step[0]]
    return path[::-1]


def sentences(stacks: Stacks) -> str:
    """The arrangement in words."""
    return " ".join(
        f"Block {block} is on {f'block {support}' if support else 'the table'}."
        for block, support in enumerate(stacks, start=1)
    )


def drawing(stacks: Stacks) -> str:
    """The stacks side by side, ordered by their lowest block."""
    above = {support: block for block, support in enumerate(stacks, start=1) if support}
    columns = []
    for block in (block for block, support in enumerate(stacks, start=1) if not support):
        column = [block]
        while column[-1] in above:
            column.append(above[column[-1]])
        columns.append(column)
    height = max(map(len, columns))
    rows = [
        [str(column[level]) if level < len(column) else "." for column in columns] for level in reversed(range(height))
    ]
    return "\n".join(" ".join(row) for row in rows)
