"""Speed of every game, and what its expert and a random player reach.

    python benchmarks/games.py --write games.md

One process, one core. Per game: time of the first level in a process, then of others (median and slowest), replies per
second of a player who picks among the listed legal actions (plain words where a game lists none), and success, return
and time per level of the expert on levels of the default size. A game whose package, program or Java is missing is
listed as such.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from machine import describe, machine

from rllib_lmgame.base.errors import MissingDependencyError
from rllib_lmgame.envs import make_session
from rllib_lmgame.envs.contract.session import GameSession
from rllib_lmgame.envs.registry import own_games

BEGIN, END = "<!-- games.py: begin -->", "<!-- games.py: end -->"
COLUMNS = (
    "game",
    "first level, ms",
    "level, ms (median)",
    "level, ms (slowest)",
    "replies/s",
    "expert: success",
    "expert: return",
    "expert: ms a level",
    "levels",
    "random: success",
)
MAX_REPLIES = 2_000


@dataclass
class Clock:
    """Seconds spent inside ``with clock.running():``."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


@dataclass(frozen=True)
class Played:
    """Figures of some episodes of one player."""

    levels: int
    success: float
    mean_return: float
    seconds: float


def level_times(session: GameSession, seconds: float, most: int) -> list[float]:
    """Seconds of each reset, until ``seconds`` are over or ``most`` levels made."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(times) < most and (time.perf_counter() < deadline or not times):
        began = time.perf_counter()
        session.reset(len(times))
        times.append(time.perf_counter() - began)
    return times


def warm_up(session: GameSession) -> None:
    """What is imported and built once per process, at the first levels and the first replies."""
    level_times(session, math.inf, 8)
    random_play(session, 0.1)


def random_play(session: GameSession, seconds: float) -> tuple[float, float]:
    """Replies per second (without making levels), and share of episodes won, of random listed actions."""
    chance, clock = random.Random(0), Clock()
    replies = episodes = won = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline or not episodes:
        session.reset(100_000 + episodes)
        episodes += 1
        success = False
        for _ in range(MAX_REPLIES):
            actors = session.to_act()
            if not actors:
                break
            actions = {
                agent: chance.choice(session.observe(agent).legal_actions or ("some words",)) for agent in actors
            }
            with clock.running():
                result = session.step(actions)
            replies += 1
            success = any(info.get("success") for info in result.infos.values())
        won += success
    return replies / clock.seconds, won / episodes


def expert_play(session: GameSession, seconds: float, most: int) -> Played | None:
    """The expert in every seat; ``None`` without one."""
    episodes = won = 0
    total = 0.0
    clock = Clock()
    deadline = time.perf_counter() + seconds
    while episodes < most and (time.perf_counter() < deadline or not episodes):
        session.reset(episodes)
        episodes += 1
        success = False
        with clock.running():
            for _ in range(MAX_REPLIES):
                actors = session.to_act()
                if not actors:
                    break
                actions = {agent: session.expert_action(agent) for agent in actors}
                if None in actions.values():
                    return None
                result = session.step({agent: action or "" for agent, action in actions.items()})
                total += sum(result.rewards.values()) / len(session.agent_ids)
                success = any(info.get("success") for info in result.infos.values())
        won += success
    return Played(episodes, won / episodes, total / episodes, clock.seconds)


def row_of(game: str, seconds: float, levels: int) -> tuple[str, ...]:
    """One line of the table."""
    try:
        session = make_session(game)
        first = level_times(session, 0.0, 1)[0]
        warm_up(session)
        times = level_times(session, seconds, levels)
        speed, lucky = random_play(session, seconds)
        expert = expert_play(session, 4 * seconds, levels)
        session.close()
    except MissingDependencyError as error:
        return (f"`{game}`", str(error), *[""] * (len(COLUMNS) - 2))
    known = (
        (
            f"{expert.success:.3f}",
            f"{expert.mean_return:.2f}",
            f"{1000 * expert.seconds / expert.levels:.1f}",
            str(expert.levels),
        )
        if expert
        else ("", "", "", "")
    )
    levels_ms = (f"{1000 * first:.1f}", f"{1000 * statistics.median(times):.2f}", f"{1000 * max(times):.1f}")
    return (f"`{game}`", *levels_ms, f"{speed:,.0f}", *known, f"{lucky:.3f}")


def page(rows: list[tuple[str, ...]]) -> str:
    """The table as Markdown, with the machine."""
    head = "| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS)
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{BEGIN}\n{describe(machine())}\n\n{head}\n{body}\n{END}\n"


def main() -> None:
    """Measure the games named, by default all of this package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", help="ids; all by default")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="per figure and game; the expert has four times as long (default 2)"
    )
    parser.add_argument("--levels", type=int, default=1000, help="levels at most (default 1000)")
    parser.add_argument("--write", type=Path, help="put the table into this Markdown file, between its markers")
    args = parser.parse_args()
    rows = []
    for game in args.games or list(own_games()):
        rows.append(row_of(game, args.seconds, args.levels))
        print(" | ".join(rows[-1]), flush=True)
    if args.write:
        old = (
            args.write.read_text(encoding="utf-8")
            if args.write.exists()
            else f"# Speed of the games\n\n{BEGIN}\n{END}\n"
        )
        before, _, rest = old.partition(BEGIN)
        args.write.write_text(before + page(rows) + "\n" + rest.partition(END)[2].lstrip("\n"), encoding="utf-8")


if __name__ == "__main__":
    main()
