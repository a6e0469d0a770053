"""``rllib play``: play a game in the terminal or a browser, alone or against players of any kind, or watch them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.http_server import check_free
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option, Section, env_config, env_config_of, seed
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings
from rllib_lmgame.cli.view import PAGE, show_page
from rllib_lmgame.envs import GameError, make_session
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.scripted import FORMS, SCRIPTED_PLAYERS, SolverPlayer
from rllib_lmgame.rollouts.game_calls import abandon, open_session
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import GameInPlay, GameStep, PlayedEpisode
from rllib_lmgame.rollouts.players import Player, seat_seed
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.evaluation.players.settings import PlayerSettings

NOBODY = "none"
HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, `quit` or an empty line leaves."
LEAVES = ("", "quit", "exit")
"""Input that leaves the game unless it is a legal action."""


class Left(EpisodeFailed):
    """Raised when the person leaves the game."""

    def __init__(self) -> None:
        super().__init__(StopReason.FORFEIT, "left")


class Face(Protocol):
    """Where a game is played: the terminal, or a tab of a browser."""

    async def show(self, text: str, kind: str = "note") -> None:
        """Show a text; ``kind`` is ``rules``, ``seen`` (by a player), ``did``, ``end`` (a result) or ``note``."""

    async def read(self, prompt: str, choices: Sequence[str] = ()) -> str:
        """A line that the person types; ``choices`` are the legal ones. Raises: Left."""
        raise NotImplementedError

    async def over(self, game: PlayedEpisode) -> None:
        """The game is over, and nothing of it is secret any more."""
        return


@options.command(
    "Play a game in the terminal, or with --web in a browser. You take the first seat that no player is named for, and "
    "watch where there is none, or with --seat none.",
    Option("[GAME]", "id, entry point name or package.module:Class (default: the checkpoint's game)", dest="game"),
    Option("--checkpoint DIR", "a checkpoint, or the directory of its trial: it plays the other seats of its game"),
    Option("--players [SEAT=]PLAYER...", f"who takes which seat; without SEAT all that are left: {FORMS}", default=[]),
    Option("--seat AGENT", "your seat; `none` to watch (default: the first of several that is left)"),
    *PLAYER_OPTIONS,
    Option("--no-pause", "do not wait for Enter after each turn that you watch"),
    Option("--web", "play on a page for the browser of this machine: a game in each tab"),
    Section("with --web", *PAGE),
    seed("the level"),
    env_config("the game, on top of the checkpoint's"),
)
def command(args: argparse.Namespace) -> int:
    try:
        return _play(args)
    except GameError as error:
        raise ConfigError("", str(error)) from error
    except (Left, KeyboardInterrupt):
        print("left")
        return 0
    except EpisodeFailed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1


def _play(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint
    from rllib_lmgame.algorithms.games import found_beside
    from rllib_lmgame.evaluation.players.naming import without_names
    from rllib_lmgame.evaluation.saved_config import open_checkpoint

    if args.web:  # Before a model is loaded.
        check_free("127.0.0.1", args.port)
    own_options = env_config_of(args)
    find_in_current_directory([args.game, without_names(args.players), own_options])
    if args.game is None and args.checkpoint is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    games = () if args.game is None else (GameConfig(env=game_spec(args.game).game_id, env_config=own_options),)
    settings = player_settings(args, games, at_once=1)
    limit_s, shown = CALL_LIMIT_S, ""
    if args.checkpoint is not None:
        config = open_checkpoint(find_checkpoint(args.checkpoint), trust=settings.trust)[1]
        games = (_game_of(config, None if args.game is None else games[0].env, own_options),)
        limit_s, shown = config.run.text_rollouts.env_step_timeout_s, f" {games[0].env_config}"
    (game,) = games
    found_beside(game)
    session = make_session(game.env, game.env_config)
    limit_s = math.inf if session.trusted else limit_s
    try:
        players = players_of(args, session, replace(settings, games=games))
        you = {agent: isinstance(player, Person) for agent, player in players.items()}  # The result is theirs.
        assignments = {agent: replace(each.assignment, trained=you[agent]) for agent, each in players.items()}
        about = ""
        if args.players or args.checkpoint is not None:
            seats = [f"{agent}: {player.name}" for agent, player in players.items()]
            told = [seat for seat in seats if not session.secret_seats or seat.endswith(": you")]
            about = f"{game.env}{shown}; {', '.join(told)}\n"

        async def run() -> int:
            async with AsyncExitStack() as stack:
                for player in dict.fromkeys(players.values()):
                    await stack.enter_async_context(player)
                if args.web:
                    from rllib_lmgame.servers.play import serve_games

                    await serve_games(in_tab, args.port, partial(show_page, "Play", args))
                return await play(session, Terminal(), 0)

        async def in_tab(tab: Face, later: int) -> None:
            own = await open_session(game, limit_s)
            own.trusted = False  # So that it is called in a thread: what takes long holds no other tab.
            try:
                await play(own, tab, later)
            finally:
                abandon(own)

        async def play(session: GameSession, face: Face, later: int) -> int:
            plan = EpisodePlan(f"play-{args.seed + later}", 0, args.seed + later, "", 0, assignments=assignments)
            await face.show(about + session.instructions, "rules")
            return await play_game(session, players, plan, face, not args.no_pause, limit_s)

        return asyncio.run(run())
    finally:
        session.close()


def _game_of(config: LMGameConfig, name: str | None, own: Mapping[str, Any]) -> GameConfig:
    """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
    from rllib_lmgame.algorithms.games import on_split

    known = config.games_for_evaluation("test")
    if name is not None:
        elsewhere = on_split((GameConfig(env=name),), "test", override=True)
        known = (*(game for game in known if game.env == name), *elsewhere)
    elif not known:
        raise ConfigError("GAME", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
    return GameConfig(env=known[0].env, env_config={**known[0].env_config, **own})


def players_of(args: argparse.Namespace, session: GameSession, settings: PlayerSettings) -> dict[str, Player]:
    """Who sits where; each player is made once.

    Raises: ConfigError: no such player or seat, or not one player for each seat; CheckpointError: damaged.
    """
    from rllib_lmgame.evaluation.players.naming import make_player, split_name

    agents, named = session.agent_ids, dict(map(split_name, args.players))
    for flag, seats in (("--players", named), ("--seat", [args.seat])):
        for seat in seats:
            if seat not in (None, NOBODY, *agents):
                hint = did_you_mean(seat, agents, f"seats: {', '.join(agents)}; `--seat {NOBODY}` to watch")
                raise ConfigError(flag, f"{session.game_id} has no seat {seat!r}; {hint}")
    if len(named) < len(args.players):
        raise ConfigError("--players", f"two players for one seat; write SEAT=PLAYER for each of {', '.join(agents)}")
    rest = named.pop(None, args.checkpoint)
    people = [agent for agent in agents if agent not in named]
    if args.seat is not None:
        people = [agent for agent in agents if agent == args.seat]
    elif rest is not None:
        people = people[: len(agents) > 1]
    made: dict[str | None, Player] = {None: Person()}
    seated = {}
    for agent in agents:
        source = None if agent in people else named.get(agent, rest)
        if source is None and agent not in people:
            why = f"nobody takes the seat {agent!r}; write {agent}=PLAYER, or PLAYER for all"
            raise ConfigError("--players", why)
        if source not in made:
            made[source] = make_player(str(source), str(source), settings)
        seated[agent] = made[source]
    return seated


class Person(Player):
    """The person."""

    def __init__(self) -> None:
        super().__init__("you")

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        return PersonSeat(agent, session.roles[agent], self.name)


@dataclass
class PersonSeat(Seat):
    played_for = True
    face: Face = None  # type: ignore[assignment]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # Of all seats: one is asked at a time.

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        async with self.turn:
            return await self._reply(session, observation, call)

    async def _reply(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        await self.face.show(f"\n{observation.text}", "seen")
        while True:
            prompt = f"{self.agent_id}{_turns_left(observation.turns_left)}> "
            text = (await self.face.read(prompt, observation.legal_actions)).strip()
            if text == "?":
                await self.face.show(", ".join(observation.legal_actions) or "the game does not list them")
            elif text == "!":
                expert: str | None = await call("expert_action", session.expert_action, self.agent_id)
                await self.face.show(expert or "the game has no expert")
                if expert:
                    return expert
            elif text.lower() in LEAVES and text not in observation.legal_actions:
                raise Left
            else:
                return text


async def play_game(
    session: GameSession, players: Mapping[str, Player], plan: EpisodePlan, face: Face, pause: bool, limit_s: float
) -> int:
    """Play a game to its end and show it; returns the exit status.

    ``pause`` waits for Enter after each turn where nobody plays by hand, ``limit_s`` is for one call into a game, and
    infinite for one of this package's.

    Raises: ConfigError: a player cannot begin, a solver among them, or a prompt is too long; EpisodeFailed: the game
        is lost; Left: the person leaves.
    """

    turn = asyncio.Lock()

    def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        made = {agent: player.seat(session, plan, agent, seat_seed(plan, agent)) for agent, player in players.items()}
        for seat in made.values():
            if isinstance(seat, PersonSeat):
                seat.face, seat.turn = face, turn
        return made

    game = await GameInPlay.begin(session, plan, seats, limit_s)
    solvers = {agent for agent, each in players.items() if SCRIPTED_PLAYERS.get(each.source) is SolverPlayer}
    for agent in solvers.intersection(game.views) or (game.views if solvers and limit_s == math.inf else ()):
        await game.call("expert_action", SolverPlayer().act, session, agent, None, None)
    if solvers:  # Experts draw, so that the game begins anew.
        game = await GameInPlay.begin(session, plan, seats, limit_s)
    return await _Table(game, face).play(pause)


class _Table:
    def __init__(self, game: GameInPlay, face: Face) -> None:
        self.game, self.show, self.read, self.over = game, face.show, face.read, face.over
        self.people = [agent for agent, seat in game.seats.items() if isinstance(seat, PersonSeat)]
        # The person must not see who plays which seat.
        self.secret = game.session.secret_seats and bool(self.people)

    async def play(self, pause: bool) -> int:
        game = self.game
        if self.people:
            await self.show(f"\n{HELP}")
        while game.views:
            played = len(game.steps)
            asked = {agent: view for agent, view in game.views.items() if agent not in game.ends}
            if len(asked) == 1:  # The reply may take long.
                await self._show_view(*asked.values())
            # A person who is to act at the same time as others does so before they are heard.
            game.views = dict(sorted(game.views.items(), key=lambda view: view[0] not in self.people))
            await game.advance()
            step = game.steps[-1] if len(game.steps) > played else None
            for agent, view in asked.items():
                if len(asked) > 1:
                    await self._show_view(view)
                await self._show_reply(agent, view, step)
            if step is None:  # No player is left.
                return 1
            await self._show_rewards(step)
            watched = game.views and pause and not self.people
            if watched and (await self.read("(Enter to go on, `quit` leaves) ")).strip() in LEAVES[1:]:
                raise Left
        await self._verdict()
        return 0

    async def _show_view(self, view: Observation) -> None:
        if not self.people:
            await self.show(f"\n{view.text}", "seen")

    async def _show_reply(self, agent: str, view: Observation, step: GameStep | None) -> None:
        """What ``agent`` wrote; hidden from a person who plays, because the game shows what all players may know."""
        if agent in self.people or self.secret:
            return
        if step is None or agent not in step.actions:
            await self.show(f"{agent} has no tokens left for another reply ({self.game.ends[agent].stop_reason.value})")
            return
        seat = self.game.seats[agent]
        said = seat.said()
        written = step.actions[agent] if said is None else repr(said) if said.strip() != said or "\n" in said else said
        shown = "(has replied)" if self.people else written
        await self.show(f"{agent}{_turns_left(view.turns_left)} ({seat.module_id})> {shown}", "did")

    async def _show_rewards(self, step: GameStep) -> None:
        shown = self.people if self.secret and self.game.views else list(step.rewards)
        rewards = {agent: step.rewards[agent] for agent in shown if agent in step.rewards}
        if not self.secret or any(rewards.values()):
            said = ", ".join(f"{agent} {reward + 0.0:g}" for agent, reward in rewards.items())
            await self.show(f"reward: {said}")

    async def _verdict(self) -> None:
        game, agents = self.game, list(self.game.seats)
        viewer = (self.people or agents)[0]
        seen = await game.call("observe", game.session.observe, viewer)
        await self.show(f"\n{seen.text}\n", "seen")
        ending = "the budget is used up" if game.stop_reason is StopReason.MAX_TURNS else "the game is over"
        earned = ((agent, game.seats[agent].numbers.episode_return) for agent in agents)
        await self.show(f"{ending}; return: " + ", ".join(f"{agent} {value:g}" for agent, value in earned), "end")
        infos = {agent: game.infos.get(agent, {}) for agent in agents}
        if any("success" in info for info in infos.values()):
            won = [agent for agent in agents if infos[agent].get("success")]
            await self.show("success: " + (", ".join(won) or "no" * (len(agents) == 1) or "nobody"), "end")
        measures = {agent: infos[agent].get("measures") or {} for agent in agents}
        of_all = len(agents) > 1 and all(found == measures[viewer] for found in measures.values())
        for agent, found in ({"all": measures[viewer]} if of_all else measures).items():
            if found:
                await self.show(f"{agent}: " + ", ".join(f"{name} {number:g}" for name, number in found.items()))
        if not self.secret:
            await self.over(game)


def _turns_left(turns: int | None) -> str:
    return "" if turns is None else f" ({turns} turn{'s' * (turns != 1)} left)"


class Terminal(Face):
    """The terminal: a line from a pipe or file is printed too. The end of input and Ctrl-C leave the game."""

    async def show(self, text: str, kind: str = "note") -> None:
        print(printable(text))

    async def read(self, prompt: str, choices: Sequence[str] = ()) -> str:
        try:
            with _interruptible():
                text = input(prompt)
        except EOFError:
            print()  # ends the line of the prompt
            raise Left from None
        except KeyboardInterrupt:
            raise Left from None
        if not sys.stdin.isatty():
            print(text)
        return text


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends waiting for a line: the handler of an event loop would wait for its coroutine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
