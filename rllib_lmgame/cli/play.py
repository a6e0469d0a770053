"""``rllib play``: play a game in the terminal, alone or against players of any kind, or watch them play."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rllib_lmgame.base.errors import ConfigError, did_you_mean
from rllib_lmgame.base.plugin import find_in_current_directory
from rllib_lmgame.base.step_timer import CALL_LIMIT_S
from rllib_lmgame.base.text import printable
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import Option, env_config, env_config_of, seed
from rllib_lmgame.cli.playing import PLAYER_OPTIONS, player_settings
from rllib_lmgame.envs import GameError, make_session
from rllib_lmgame.envs.contract.session import GameSession, Observation
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.inference.protocol import StopReason
from rllib_lmgame.policies.scripted import FORMS, SCRIPTED_PLAYERS, SolverPlayer
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import GameInPlay, GameStep
from rllib_lmgame.rollouts.players import Player, seat_seed
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import EpisodeFailed, GameCall, Seat

if TYPE_CHECKING:
    from rllib_lmgame.algorithms.config import LMGameConfig
    from rllib_lmgame.evaluation.players.settings import PlayerSettings

NOBODY = "none"
HELP = "Type an action; `?` lists the legal actions, `!` plays the expert's, `quit`, an empty line or Ctrl-D leaves."
LEAVES = ("", "quit", "exit")
"""Input that leaves the game unless it is a legal action."""


class Left(Exception):
    """Raised when the person leaves the game."""


@options.command(
    "Play a game in the terminal. You take the first seat that no player is named for, and watch where there is none, "
    "or with --seat none.",
    Option("[GAME]", "id, entry point name or package.module:Class (default: the checkpoint's game)", dest="game"),
    Option("--checkpoint DIR", "a checkpoint, or the directory of its trial: it plays the other seats of its game"),
    Option("--players [SEAT=]PLAYER...", f"who takes which seat; without SEAT all that are left: {FORMS}", default=[]),
    Option("--seat AGENT", "your seat; `none` to watch (default: the first of several that is left)"),
    *PLAYER_OPTIONS,
    Option("--no-pause", "do not wait for Enter after each turn that you watch"),
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


def _play(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.games import found_beside
    from rllib_lmgame.evaluation.players.naming import without_names

    own_options = env_config_of(args)
    find_in_current_directory([args.game, without_names(args.players), own_options])
    if args.game is None and args.checkpoint is None:
        raise ConfigError("", "name a game (`rllib games list` shows them) or a --checkpoint")
    games = () if args.game is None else (GameConfig(env=game_spec(args.game).game_id, env_config=own_options),)
    settings = player_settings(args, games, at_once=1)
    limit_s, shown = CALL_LIMIT_S, ""
    if args.checkpoint is not None:
        config = _config_of(args.checkpoint, settings)
        games = (_game_of(config, None if args.game is None else games[0].env, own_options),)
        limit_s, shown = config.run.text_rollouts.env_step_timeout_s, f" {games[0].env_config}"
    (game,) = games
    found_beside(game)
    session = make_session(game.env, game.env_config)
    try:
        plan = EpisodePlan(f"play-{args.seed}", 0, args.seed, "", 0)
        players = players_of(args, session, replace(settings, games=games))
        if args.players or args.checkpoint is not None:
            seats = [f"{agent}: {player.name}" for agent, player in players.items()]
            told = [seat for seat in seats if not session.secret_seats or seat.endswith(": you")]
            print(f"{game.env}{shown}; " + ", ".join(told))
        plan = replace(plan, assignments={agent: player.assignment for agent, player in players.items()})
        return asyncio.run(_play_in_terminal(session, players, plan, not args.no_pause, limit_s))
    finally:
        session.close()


def _config_of(path: str, settings: PlayerSettings) -> LMGameConfig:
    """Configuration of a checkpoint. Raises: CheckpointError: not one of this package, or damaged."""
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint
    from rllib_lmgame.evaluation.saved_config import open_checkpoint

    return open_checkpoint(find_checkpoint(path), trust=settings.trust)[1]


def _game_of(config: LMGameConfig, name: str | None, own: Mapping[str, Any]) -> GameConfig:
    """The game and its options: those of the checkpoint on test levels, with ``own`` options on top."""
    from rllib_lmgame.algorithms.games import on_split

    known = config.games_for_evaluation("test")
    if name is not None:
        elsewhere = on_split((GameConfig(env=name),), "test", override=True)[0]
        chosen = next((entry for entry in known if entry.env == name), elsewhere)
    elif not known:
        raise ConfigError("GAME", "the checkpoint was trained on files alone; name a game (`rllib games list`)")
    else:
        chosen = known[0]
    return GameConfig(env=chosen.env, env_config={**chosen.env_config, **own})


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
    """The person at the terminal."""

    def __init__(self) -> None:
        super().__init__("you")

    def seat(self, session: GameSession, plan: EpisodePlan, agent: str, seed: int) -> Seat:
        return PersonSeat(agent, session.roles[agent], self.name)


@dataclass
class PersonSeat(Seat):
    played_for = True

    async def act(self, session: GameSession, observation: Observation, call: GameCall) -> str:
        print(f"\n{printable(observation.text)}")
        while True:
            text = _read(f"{self.agent_id}{_turns_left(observation.turns_left)}> ").strip()
            if text == "?":
                print(", ".join(observation.legal_actions) or "the game does not list them")
            elif text == "!":
                expert: str | None = await call("expert_action", session.expert_action, self.agent_id)
                print(expert or "the game has no expert")
                if expert:
                    return expert
            elif text.lower() in LEAVES and text not in observation.legal_actions:
                raise Left
            else:
                return text


async def _play_in_terminal(
    session: GameSession, players: Mapping[str, Player], plan: EpisodePlan, pause: bool, limit_s: float
) -> int:
    """Play a game to its end and show it; returns the exit status.

    ``pause`` waits for Enter after each turn where nobody plays by hand, ``limit_s`` is for one call into a game that
    is not this package's.

    Raises: ConfigError: a player cannot begin, a solver among them, or a prompt is too long; Left: the person leaves.
    """

    def seats(session: GameSession, plan: EpisodePlan) -> dict[str, Seat]:
        return {agent: player.seat(session, plan, agent, seat_seed(plan, agent)) for agent, player in players.items()}

    async with AsyncExitStack() as stack:
        for player in dict.fromkeys(players.values()):
            await stack.enter_async_context(player)
        try:
            game = await GameInPlay.begin(session, plan, seats, limit_s)
            solvers = {agent for agent, each in players.items() if SCRIPTED_PLAYERS.get(each.source) is SolverPlayer}
            for agent in solvers.intersection(game.views) or (game.views if solvers and session.trusted else ()):
                await game.call("expert_action", SolverPlayer().act, session, agent, None, None)
            if solvers:  # Experts draw, so that the game begins anew.
                game = await GameInPlay.begin(session, plan, seats, limit_s)
            return await _Table(game).play(pause)
        except EpisodeFailed as failure:
            print(f"error: {failure}", file=sys.stderr)
            return 1


class _Table:
    def __init__(self, game: GameInPlay) -> None:
        self.game = game
        self.people = [agent for agent, seat in game.seats.items() if isinstance(seat, PersonSeat)]
        # The person must not see who plays which seat.
        self.secret = game.session.secret_seats and bool(self.people)

    async def play(self, pause: bool) -> int:
        game = self.game
        print(game.session.instructions, *([HELP] if self.people else []), sep="\n\n")
        while game.views:
            played = len(game.steps)
            asked = {agent: view for agent, view in game.views.items() if agent not in game.ends}
            if len(asked) == 1:  # The reply may take long.
                self._show_view(*asked.values())
            # A person who is to act at the same time as others does so before they are heard.
            game.views = dict(sorted(game.views.items(), key=lambda view: view[0] not in self.people))
            await game.advance()
            step = game.steps[-1] if len(game.steps) > played else None
            for agent, view in asked.items():
                if len(asked) > 1:
                    self._show_view(view)
                self._show_reply(agent, view, step)
            if step is None:  # No player is left.
                return 1
            self._show_rewards(step)
            if game.views and pause and not self.people:
                _read("(Enter to go on, Ctrl-D to leave) ")
        await self._verdict()
        return 0

    def _show_view(self, view: Observation) -> None:
        if not self.people:
            print(f"\n{printable(view.text)}")

    def _show_reply(self, agent: str, view: Observation, step: GameStep | None) -> None:
        """What ``agent`` wrote; hidden from a person who plays, because the game shows what all players may know."""
        if agent in self.people or self.secret:
            return
        if step is None or agent not in step.actions:
            print(f"{agent} has no tokens left for another reply ({self.game.ends[agent].stop_reason.value})")
            return
        seat = self.game.seats[agent]
        said = seat.said()
        written = step.actions[agent] if said is None else repr(said) if said.strip() != said or "\n" in said else said
        shown = "(has replied)" if self.people else printable(written)
        print(f"{agent}{_turns_left(view.turns_left)} ({seat.module_id})> {shown}")

    def _show_rewards(self, step: GameStep) -> None:
        shown = self.people if self.secret and self.game.views else list(step.rewards)
        rewards = {agent: step.rewards[agent] for agent in shown if agent in step.rewards}
        if not self.secret or any(rewards.values()):
            print("reward: " + ", ".join(f"{agent} {reward + 0.0:g}" for agent, reward in rewards.items()))

    async def _verdict(self) -> None:
        game, agents = self.game, list(self.game.seats)
        viewer = (self.people or agents)[0]
        seen = await game.call("observe", game.session.observe, viewer)
        print(f"\n{printable(seen.text)}\n")
        ending = "the budget is used up" if game.stop_reason is StopReason.MAX_TURNS else "the game is over"
        earned = ((agent, game.seats[agent].numbers.episode_return) for agent in agents)
        print(f"{ending}; return: " + ", ".join(f"{agent} {value:g}" for agent, value in earned))
        infos = {agent: game.infos.get(agent, {}) for agent in agents}
        if any("success" in info for info in infos.values()):
            won = [agent for agent in agents if infos[agent].get("success")]
            print("success: " + (", ".join(won) or "no" * (len(agents) == 1) or "nobody"))
        measures = {agent: infos[agent].get("measures") or {} for agent in agents}
        of_all = len(agents) > 1 and all(found == measures[viewer] for found in measures.values())
        for agent, found in ({"all": measures[viewer]} if of_all else measures).items():
            if found:
                print(f"{agent}: " + ", ".join(f"{name} {number:g}" for name, number in found.items()))


def _turns_left(turns: int | None) -> str:
    return "" if turns is None else f" ({turns} turn{'s' * (turns != 1)} left)"


def _read(prompt: str) -> str:
    """A typed line; one from a pipe or file is printed too. Raises Left at the end or for Ctrl-C."""
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
