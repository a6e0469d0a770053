"""Measures of trained policies beside episodes: ``evaluation_config.measures``.

A measure asks the engines for replies and makes numbers, which are result keys below ``evaluation/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rllib_lmgame.algorithms.games import roles_of
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.registry import MEASURES, check_call, check_methods
from rllib_lmgame.envs.contract.sequence_form import InformationSet
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.rollouts.batch_inference import Answer, NotAnswered, ask, ask_for_samples
from rllib_lmgame.rollouts.game_calls import run_to_end
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.records import GameConfig, PlayResult
from rllib_lmgame.rollouts.seats import Generate
from rllib_lmgame.rollouts.sources import AgentMapper

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

AT_ONCE = 2048
"""Decisions that are asked about at once."""

LAST = "_last"
"""At the end of the names of numbers of the last iterate, where evaluation uses averaged weights."""

_ROUNDS = 3
"""Attempts to get answers while engines die and come back."""

Seats = Mapping[str, str]
"""Agent id -> policy."""

Play = Callable[[Sequence[EpisodePlan], GameConfig], PlayResult]


class Measure(Protocol):
    """A measure; its arguments are those of its constructor."""

    columns: tuple[str, ...]
    """Names of its numbers: all that it gives, at every call."""

    def problem(self, game: GameConfig) -> str | None:
        """Why ``game`` has no such measure, or ``None``."""

    def __call__(self, game: GameConfig, policies: AskedPolicies) -> Mapping[str, float]:
        """The numbers of policies that play ``game``."""


def load_measure(setting: Any, key: str) -> Measure:
    """The measure of an entry: a name, an import path, or a mapping with ``type`` and arguments.

    Raises: ConfigError: if it does not exist or refuses the arguments.
    """
    measure: Measure = MEASURES.make(setting, key)
    name, _ = MEASURES.split(setting, key)
    check_methods(measure, Measure, name, key)
    check_call(measure, name, key, "a measure takes a game and policies to ask", None, None)
    return measure


def check_measures(settings: Any, games: Sequence[GameConfig], key: str, *, averaged: bool = False) -> None:
    """Raise :class:`ConfigError` unless each measure fits one of ``games``, without equal names of numbers in a game.

    With ``averaged`` (evaluation uses averaged weights), the numbers of the last iterate count too.
    """
    if not isinstance(settings, list | tuple):
        raise ConfigError(key, f"expected a list of measures, got {describe(settings)}")
    given: list[set[str]] = [set() for _ in games]
    for number, setting in enumerate(settings):
        measure = load_measure(setting, f"{key}[{number}]")
        problems = [measure.problem(game) for game in games]
        if problems and all(problems):
            why = "; ".join(dict.fromkeys(problem for problem in problems if problem))
            raise ConfigError(f"{key}[{number}]", f"no game that is evaluated has this measure: {why}")
        columns = _columns(measure, averaged)
        for game, names, problem in zip(games, given, problems, strict=True):
            if problem is not None:
                continue
            again = {*columns} & names | {name for name in columns if columns.count(name) > 1}
            if again:
                listed = ", ".join(sorted(again))
                raise ConfigError(f"{key}[{number}]", f"{game.env} has numbers of these names already: {listed}")
            names |= {*columns}


def _columns(measure: Measure, averaged: bool) -> tuple[str, ...]:
    return (*measure.columns, *(f"{name}{LAST}" for name in measure.columns if averaged))


def measured_columns(
    config: AlgorithmConfig, settings: Sequence[Any], games: Sequence[GameConfig], *, averaged: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Paths of the numbers that :func:`measure_policies` gives; with ``averaged`` also of the last iterate."""
    agent_mapper = AgentMapper(config)
    found = []
    for _, measure, path, game in _measured(settings, games):
        for policy in profiles(config, agent_mapper, game):
            found += [(*path, *policy, name) for name in _columns(measure, averaged)]
    return tuple(found)


def measure_policies(
    config: AlgorithmConfig,
    settings: Sequence[Any],
    games: Sequence[GameConfig],
    heal: Callable[[], None] | None = None,
    play: Play | None = None,
    *,
    suffix: str = "",
    result: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure the trained policies with the weights that the engines hold.

    Args:
        config: With the names of the engines.
        games: Those that are evaluated; games without a measure are skipped.
        heal: Restarts engines that died.
        play: Plays episodes of a game, for measures that ask for it.
        suffix: At the end of the numbers' names (:data:`LAST`).
        result: What the numbers are added to.

    Returns:
        Numbers by name; below ``games/<id>`` for several measured games, and below the policy's name for several
        policies that may take the same seat.

    Raises: ConfigError: if a measure gives other numbers than its ``columns``.
    """
    result = {} if result is None else result
    agent_mapper = AgentMapper(config)
    for number, measure, path, game in _measured(settings, games):
        taken = partial(_numbers, f"{MEASURES.key}[{number}]", measure, game)
        for policy, seats in profiles(config, agent_mapper, game).items():
            numbers = _with_engines(config, game, seats, taken, heal, play)
            below = result
            for part in (*path, *policy):
                below = below.setdefault(part, {})
            below |= {f"{name}{suffix}": float(value) for name, value in numbers.items()}
    return result


def profiles(config: AlgorithmConfig, agent_mapper: AgentMapper, game: GameConfig) -> dict[tuple[str, ...], Seats]:
    """Assignments to measure: trained policies take all seats, also those of untrained players.

    Returns: One assignment named ``()``, or one per trained policy where several may take the same seat.
    """
    roles, trained = roles_of(game), config.trained_policies()
    drawn = agent_mapper.drawn(roles)
    found: dict[str, Seats] = {}
    for policy in trained:
        seats = {}
        for agent in roles:
            there = {assignments[agent].module_id for assignments in drawn if assignments[agent].trained}
            others = [other for other in trained if other in there]
            seats[agent] = policy if policy in there or not others else others[0]
        if policy in seats.values() and seats not in found.values():
            found[policy] = seats
    return (
        {(): next(iter(found.values()))} if len(found) == 1 else {(policy,): seats for policy, seats in found.items()}
    )


def _measured(
    settings: Sequence[Any], games: Sequence[GameConfig]
) -> Iterator[tuple[int, Measure, tuple[str, ...], GameConfig]]:
    measures = [(number, load_measure(setting, f"{MEASURES.key}[{number}]")) for number, setting in enumerate(settings)]
    having = {n: [found for found in measures if found[1].problem(game) is None] for n, game in enumerate(games)}
    measured = [n for n in having if having[n]]
    ids = [games[n].called(games[n].env).replace("/", "_") for n in measured]
    for place, n in enumerate(measured):
        again = ids[:place].count(ids[place])
        path = ("games", f"{ids[place]}_{again + 1}" if again else ids[place]) if len(measured) > 1 else ()
        for number, measure in having[n]:
            yield number, measure, path, games[n]


def _numbers(key: str, measure: Measure, game: GameConfig, policies: AskedPolicies) -> Mapping[str, float]:
    """A measure's numbers, which have the names that it promises: stops and columns of files go by these."""
    numbers = measure(game, policies)
    if {*numbers} != {*measure.columns}:
        gave, named = (", ".join(map(str, names)) for names in (numbers, measure.columns))
        raise ConfigError(key, f"{type(measure).__name__} gave {gave}, but its `columns` name {named}")
    return numbers


def _with_engines(
    config: AlgorithmConfig,
    game: GameConfig,
    seats: Seats,
    use: Callable[[AskedPolicies], Mapping[str, float]],
    heal: Callable[[], None] | None,
    play: Play | None,
) -> Mapping[str, float]:
    """``use`` with policies that answer; once more where an engine did not."""
    from rllib_lmgame.inference.serving.client import EngineClient

    timeout_s = config.run.inference.request_timeout_s
    for attempt in range(_ROUNDS):
        with ExitStack() as clients:
            generate: dict[str, Generate] = {}
            for policy in sorted({*seats.values()}):
                client = EngineClient(config.engine_names[policy], request_timeout_s=timeout_s)
                clients.callback(client.close)
                generate[policy] = client.generate
            try:
                return use(AskedPolicies(config, seats, generate, game, play))
            except NotAnswered:
                if heal is None or attempt == _ROUNDS - 1:
                    raise
        if heal is not None:
            heal()
    raise AssertionError("unreachable")


class AskedPolicies:
    """Policies that take all seats of a game, as a measure sees them; their weights are in engines.

    Attributes:
        seats: Agent id -> policy.
        reasoning: One of them reasons before it answers, so that only samples say what it replies.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        seats: Seats,
        generate: Mapping[str, Generate],
        game: GameConfig,
        play: Play | None = None,
    ) -> None:
        """``generate``: policy -> request function."""
        self._config = config
        self._game = game
        self._generate = generate
        self.seats = seats
        self._play = play
        self._chats = {policy: self._chat(policy) for policy in sorted(set(seats.values()))}
        self.reasoning = any(chat.options.think != "off" for chat in self._chats.values())

    def play(self, plans: Sequence[EpisodePlan], game: GameConfig) -> PlayResult:
        assert self._play is not None, "only an algorithm plays"
        return self._play(plans, game)

    def ask(self, decisions: Sequence[InformationSet], samples: int) -> list[Answer]:
        """Probabilities of the legal actions at each decision; of policies that reason, from ``samples`` replies."""
        own = self._game.temperature
        temperature = self._config.run.inference.temperature if own is None else own
        answers: dict[int, Answer] = {}
        for policy, chat in self._chats.items():
            places = [n for n, decision in enumerate(decisions) if self.seats[decision.agent_id] == policy]
            for part in (places[start : start + AT_ONCE] for start in range(0, len(places), AT_ONCE)):
                asked = [decisions[n] for n in part], chat, self._generate[policy]
                if self.reasoning:
                    seed = self._config.seed or 0
                    found = ask_for_samples(*asked, samples=samples, temperature=temperature, seed=seed, numbers=part)
                else:
                    found = ask(*asked, constrained_decoding=self._config.run.text_rollouts.constrained_decoding)
                answers |= dict(zip(part, run_to_end(found), strict=True))
        return [answers[n] for n in range(len(decisions))]

    def _chat(self, policy: str) -> ChatFormat:
        options = self._config.language_model_of(policy, self._game).in_game(game_spec(self._game.env).game_id)
        return ChatFormat(load_tokenizer(self._config.model_files[policy].directory(), options), options)
