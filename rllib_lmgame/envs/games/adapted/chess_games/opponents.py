"""Who plays the other side."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import weakref
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

import chess
import chess.engine

from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.envs.contract.base import GameError
from rllib_lmgame.envs.games.adapted.chess_games.search import MATE, best_move, evaluate
from rllib_lmgame.envs.support.loop_thread import submitted

ENGINE_TIMEOUT_S = 30.0
"""Longest an engine may take to start, or for a move."""

ENGINE_END_S = 5.0

UCI_ELO_MINIMUM = 1350

DEBIAN_GAMES = "/usr/games"
"""Where Debian installs Stockfish, which is not on every user's PATH."""

T = TypeVar("T")


class Opponent(ABC):
    """Plays one side of a game."""

    @abstractmethod
    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        """A legal move; ``board`` is as it was when this returns. ``rng`` decides between moves that are equally
        good.
        """

    def close(self) -> None:  # noqa: B027
        """Free what it holds."""


class RandomOpponent(Opponent):
    """Any legal move."""

    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        return rng.choice(list(board.legal_moves))


class GreedyOpponent(Opponent):
    """The move after which material and squares stand best; it does not look at the answer."""

    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        values: dict[chess.Move, int] = {}
        for move in board.legal_moves:
            board.push(move)
            values[move] = MATE if board.is_checkmate() else 0 if board.is_stalemate() else -evaluate(board)
            board.pop()
        highest = max(values.values())
        return rng.choice([move for move, value in values.items() if value == highest])


class AlphaBetaOpponent(Opponent):
    """Alpha-beta to a fixed depth; leaves nothing to chance.

    Args:
        depth: Plies it looks ahead.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        return best_move(board, self.depth)


class EngineOpponent(Opponent):
    """An engine that speaks UCI, such as Stockfish, as a process of its own.

    The process starts with the first move asked for and ends with :meth:`close`, with the game object, or with this
    process. What it plays at a reduced ``skill`` or ``elo`` is the engine's own chance: levels follow the seed, its
    moves do not.

    Args:
        command: Program, by name or path.
        nodes: Positions it may look at per move.
        skill: ``Skill Level``, 0 to 20.
        elo: Strength to play at, from :data:`UCI_ELO_MINIMUM`.

    Raises:
        ConfigError: for an Elo below the minimum, or ``skill`` and ``elo`` together.
        MissingDependencyError: if there is no such program.
    """

    def __init__(self, command: str, nodes: int, skill: int | None, elo: int | None) -> None:
        if elo is not None and elo < UCI_ELO_MINIMUM:
            raise ConfigError(
                "env_config.engine_elo",
                f"is {elo}, but engines take {UCI_ELO_MINIMUM} at least; for a weaker player set engine_skill (0 "
                "is the weakest)",
            )
        if elo is not None and skill is not None:
            raise ConfigError(
                "env_config.engine_elo", "and env_config.engine_skill both limit the strength; set one of them"
            )
        program = shutil.which(command) or shutil.which(command, path=DEBIAN_GAMES)
        if program is None:
            raise MissingDependencyError(
                f"opponent 'stockfish' needs the program {command!r}, which is not on PATH: install it (apt-get "
                "install stockfish, or from stockfishchess.org) or give its path as env_config.engine_path"
            )
        self._program = program
        self._limit = chess.engine.Limit(nodes=nodes)
        self._wanted: dict[str, int | bool] = {"Threads": 1, "Hash": 16}
        if skill is not None:
            self._wanted["Skill Level"] = skill
        if elo is not None:
            self._wanted |= {"UCI_LimitStrength": True, "UCI_Elo": elo}
        self._engine: chess.engine.UciProtocol | None = None
        self._finalizer: weakref.finalize | None = None

    def move(self, board: chess.Board, rng: random.Random) -> chess.Move:
        engine = self._engine or self._start()
        try:
            played = _wait(engine.play(board, self._limit), ENGINE_TIMEOUT_S).move
        except (chess.engine.EngineError, TimeoutError) as error:
            self.close()
            raise GameError(
                f"the chess engine {self._program} failed: {error or f'no move within {ENGINE_TIMEOUT_S:g} s'}"
            ) from error
        if played is None:
            raise GameError(f"the chess engine {self._program} gave no move")
        return played

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._engine = self._finalizer = None

    def _start(self) -> chess.engine.UciProtocol:
        try:
            transport, engine = _wait(chess.engine.popen_uci(self._program), ENGINE_TIMEOUT_S)
        except (chess.engine.EngineError, OSError, TimeoutError) as error:
            raise GameError(
                f"the chess engine {self._program} does not start or does not speak UCI: {error}"
            ) from error
        self._finalizer = weakref.finalize(self, _end, transport, engine)
        self._engine = engine
        unknown = [name for name in self._wanted if name not in engine.options and name not in ("Threads", "Hash")]
        if unknown:
            self.close()
            raise ConfigError(
                "env_config.engine_path", f"the engine {self._program} has no option {', '.join(unknown)}"
            )
        try:
            _wait(
                engine.configure({name: value for name, value in self._wanted.items() if name in engine.options}),
                ENGINE_TIMEOUT_S,
            )
        except chess.engine.EngineError as error:
            self.close()
            raise ConfigError("env_config", f"the engine {self._program} refuses its settings: {error}") from error
        return engine


def _wait(call: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The result of a call to an engine. Raises: TimeoutError: if it does not come in time."""
    future = submitted(call)
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise


def _end(transport: asyncio.SubprocessTransport, engine: chess.engine.UciProtocol) -> None:
    """Kill an engine and wait until it is gone."""

    async def close() -> None:
        transport.close()
        await asyncio.shield(engine.returncode)

    with contextlib.suppress(TimeoutError, chess.engine.EngineError):
        _wait(close(), ENGINE_END_S)
