"""Measures of trained policies beside episodes: ``evaluation_config.measures``.

A measure asks the engines for replies and makes numbers, which are result keys below ``evaluation/``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from rllib_lmgame.algorithms.games import roles_of
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import describe
from rllib_lmgame.base.registry import MEASURES, check_call, check_methods
from rllib_lmgame.envs.registry import game_spec
from rllib_lmgame.inference.protocol import Generation, GenerationRequest
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.rollouts.batch_inference import Answer, NotAnswered, ask, ask_for_samples, ask_for_words
from rllib_lmgame.rollouts.game_calls import run_to_end
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.runner_config import RunnerConfig
from rllib_lmgame.rollouts.seats import Generate
from rllib_lmgame.rollouts.sources import AgentMapper

AT_ONCE = 2048
"""Decisions that are asked about at once."""

LAST = "_last"
"""At the end of the names of numbers of the last iterate, where evaluation uses averaged weights."""

_ROUNDS = 3
"""Attempts to get answers while engines die and come back."""

Seats = Mapping[str, str]
"""Agent id -> policy."""


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
    """Names of a measure's numbers, and of those of the last iterate."""
    return (*measure.columns, *(f"{name}{LAST}" for name in measure.columns if averaged))


def measured_columns(
    config: RunnerConfig, settings: Sequence[Any], games: Sequence[GameConfig], *, averaged: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Paths of the numbers that :func:`measure_policies` gives; with ``averaged`` also of the last iterate."""
    agent_mapper = AgentMapper(config)
    found = []
    for _, measure, path, game in _measured(settings, games):
        for policy in profiles(config, agent_mapper, game):
            found += [(*path, *policy, name) for name in _columns(measure, averaged)]
    return tuple(found)


def measure_policies(
    config: RunnerConfig,
    settings: Sequence[Any],
    games: Sequence[GameConfig],
    heal: Callable[[], None] | None = None,
    *,
    suffix: str = "",
    result: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure the trained policies with the weights that the engines hold.

    Args:
        config: With the names of the engines.
        games: Those that are evaluated; games without a measure are skipped.
        heal: Restarts engines that died.
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
            numbers = _with_engines(config, game, seats, taken, heal)
            below = result
            for part in (*path, *policy):
                below = below.setdefault(part, {})
            below |= {f"{name}{suffix}": float(value) for name, value in numbers.items()}
    return result


def profiles(config: RunnerConfig, agent_mapper: AgentMapper, game: GameConfig) -> dict[tuple[str, ...], Seats]:
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
    """The measures with their places in the list, where their numbers stand, and the games that have them."""
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
    named = type(measure).__name__
    lacking = [name for name in measure.columns if name not in numbers]
    if lacking:
        raise ConfigError(key, f"{named} did not give {', '.join(lacking)}, which its `columns` name")
    others = [str(name) for name in numbers if name not in measure.columns]
    if others:
        raise ConfigError(key, f"{named} gave {', '.join(others)} too; add what a measure gives to its `columns`")
    return numbers


def _with_engines(
    config: RunnerConfig,
    game: GameConfig,
    seats: Seats,
    use: Callable[[AskedPolicies], Mapping[str, float]],
    heal: Callable[[], None] | None,
) -> Mapping[str, float]:
    """``use`` with policies that answer; once more where an engine did not."""
    for attempt in range(_ROUNDS):
        try:
            with _clients(config, set(seats.values())) as generate:
                return use(AskedPolicies(config, seats, generate, game_spec(game.env).game_id, game))
        except NotAnswered:
            if heal is None or attempt == _ROUNDS - 1:
                raise
            heal()
    raise AssertionError("unreachable")


@contextmanager
def _clients(config: RunnerConfig, policies: set[str]) -> Iterator[Mapping[str, Generate]]:
    from rllib_lmgame.inference.serving.client import EngineClient

    timeout = config.run.inference.request_timeout_s
    clients = {name: EngineClient(config.engine_names[name], request_timeout_s=timeout) for name in sorted(policies)}
    try:
        yield {name: client.generate for name, client in clients.items()}
    finally:
        for client in clients.values():
            client.close()


class AskedPolicies:
    """Policies that take all seats of a game, as a measure sees them; their weights are in engines.

    Attributes:
        reasoning: One of them reasons before it answers, so that only samples say what it replies.
        rollout_options: Limits of an episode and of one call into a game.
    """

    def __init__(
        self,
        config: RunnerConfig,
        seats: Seats,
        generate: Mapping[str, Generate],
        game: str = "",
        entry: GameConfig | None = None,
    ) -> None:
        """``generate``: policy -> request function; ``game``: whose demonstrations are shown; ``entry``: how models are
        talked to in it.
        """
        self._config = config
        self._entry = entry
        self._game = game
        self._seats = seats
        self._generate = generate
        self._chats = {policy: self._chat(policy) for policy in sorted(set(seats.values()))}
        self.rollout_options = config.run.text_rollouts
        self.reasoning = any(chat.options.think != "off" for chat in self._chats.values())

    def ask(self, decisions: Sequence[InformationSet], samples: int) -> list[Answer]:
        """Probabilities of the legal actions at each decision; of policies that reason, from ``samples`` replies."""
        if self.reasoning:
            return self._collect(decisions, partial(ask_for_samples, samples=samples, **self._drawn(False)))
        return self._collect(decisions, lambda *part, numbers: self._probabilities(*part))

    async def answer(self, decision: InformationSet, number: int, *, greedy: bool = False) -> Answer:
        """The reply in game ``number``: probabilities, one sample of policies that reason, or words where no legal
        actions are listed. Raises: NoRoom, NotAnswered.
        """
        policy = self._seats[decision.agent_id]
        drawn: dict[str, Any] = {"numbers": [number], **self._drawn(greedy)}

        async def generate(request: GenerationRequest) -> Generation:
            return await self._generate[policy](replace(request, request_id=f"{number}/{request.request_id}"))

        if not decision.legal_actions:
            answers = ask_for_words([decision], self._chats[policy], generate, **drawn)
        elif self.reasoning:
            answers = ask_for_samples([decision], self._chats[policy], generate, samples=1, **drawn)
        else:
            answers = self._probabilities([decision], self._chats[policy], generate)
        return (await answers)[0]

    def _probabilities(self, *asked: Any) -> Coroutine[Any, Any, list[Answer]]:
        return ask(*asked, constrained_decoding=self.rollout_options.constrained_decoding)

    def _drawn(self, greedy: bool) -> dict[str, Any]:
        """How replies are drawn."""
        own = None if self._entry is None else self._entry.temperature
        temperature = 0.0 if greedy else self._config.run.inference.temperature if own is None else own
        return {"temperature": temperature, "seed": self._config.seed or 0}

    def _collect(self, decisions: Sequence[InformationSet], asked: Callable[..., Any]) -> list[Answer]:
        """Answers in the order of the decisions, whose positions keep random draws apart."""
        answers: dict[int, Answer] = {}
        for policy, chat in self._chats.items():
            own = [n for n, decision in enumerate(decisions) if self._seats[decision.agent_id] == policy]
            for start in range(0, len(own), AT_ONCE):
                part = own[start : start + AT_ONCE]
                found = run_to_end(asked([decisions[n] for n in part], chat, self._generate[policy], numbers=part))
                answers |= dict(zip(part, found, strict=True))
        return [answers[n] for n in range(len(decisions))]

    def _chat(self, policy: str) -> ChatFormat:
        options = self._config.language_model_of(policy, self._entry).in_game(self._game)
        return ChatFormat(load_tokenizer(self._config.model_files[policy].directory(), options), options)
