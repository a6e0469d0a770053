"""Games against scripted players as a measure of an evaluation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from rllib_lmgame.algorithms.measuring import against as measure
from rllib_lmgame.algorithms.measuring import measures
from rllib_lmgame.algorithms.measuring.against import Against
from rllib_lmgame.algorithms.measuring.measures import AskedPolicies, measured_columns
from rllib_lmgame.algorithms.trust import check_config
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.trust import Gate
from rllib_lmgame.envs.games.duels.connect_four_search import Grid, best_columns
from rllib_lmgame.envs.games.duels.tic_tac_toe import TicTacToe
from rllib_lmgame.inference.options import InferenceOptions
from rllib_lmgame.inference.protocol import Generation, GenerationRequest, StopReason
from rllib_lmgame.measures.game_tree import InformationSet
from rllib_lmgame.measures.tic_tac_toe import chances, decisions, minimax_player, uniform_player
from rllib_lmgame.policies.chat.format import ChatFormat
from rllib_lmgame.policies.model.files import load_tokenizer
from rllib_lmgame.policies.options import LanguageModelOptions
from rllib_lmgame.rollouts import game_calls
from rllib_lmgame.rollouts.batch_inference import Answer, NoRoom, NotAnswered
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import stable_seed
from rllib_lmgame.rollouts.records import GameConfig

LET_GO = threading.Event()
TIC_TAC_TOE, CONNECT_FOUR = GameConfig(env="lmgame/TicTacToe-v0"), GameConfig(env="lmgame/ConnectFour-v0")


class Asked:
    """Policies made of a function, which remember what they were asked."""

    reasoning = False
    rollout_options = TextRolloutOptions(env_step_timeout_s=1.0, episode_timeout_s=60.0)

    def __init__(self, odds: Callable[[InformationSet], dict[str, float]]) -> None:
        self.odds = odds
        self.seen: list[InformationSet] = []

    async def answer(self, decision: InformationSet, number: int, *, greedy: bool = False) -> Answer:
        self.seen.append(decision)
        return Answer(self.odds(decision), 0.25)


class Talking(Asked):
    """The same, in turns of free talk what it is given to say; ``None`` is a reply that cannot be read."""

    rollout_options = TextRolloutOptions()

    def __init__(self, words: str | None) -> None:
        super().__init__(uniform)
        self.words = words
        self.greedy: set[bool] = set()

    async def answer(self, decision: InformationSet, number: int, *, greedy: bool = False) -> Answer:
        if decision.legal_actions:
            return await super().answer(decision, number)
        self.seen.append(decision)
        self.greedy.add(greedy)
        return Answer({self.words or "": 1.0}, float(self.words is None))


def engine_policies(directory: str) -> tuple[AskedPolicies, list[GenerationRequest]]:
    """A policy that reasons and always answers ``1``, and the requests that its engine has got so far."""
    options = LanguageModelOptions(
        model=directory, think="required", max_tokens_per_turn=16, context_length=1024, history="window"
    )
    config: Any = SimpleNamespace(
        model_files={"player": SimpleNamespace(directory=lambda: directory)},
        language_model_of=lambda policy, entry=None: options,
        run=SimpleNamespace(text_rollouts=TextRolloutOptions(), inference=InferenceOptions(temperature=0.7)),
        seed=0,
    )
    chat = ChatFormat(load_tokenizer(directory, options), options)
    requests: list[GenerationRequest] = []

    async def generate(request: GenerationRequest) -> Generation:
        requests.append(request)
        ids = np.array(chat.reply_ids("1", "a corner"), np.int32)
        return Generation(request.request_id, ids, np.zeros(len(ids), np.float32), StopReason.EOS, 0)

    return AskedPolicies(config, dict.fromkeys("XO", "player"), {"player": generate}), requests


def uniform(decision: InformationSet) -> dict[str, float]:
    return dict.fromkeys(decision.legal_actions, 1 / len(decision.legal_actions))


def stones(decision: InformationSet, mark: str) -> int:
    """A player's stones on the board that is shown, as the search takes them."""
    rows = [line.split() for line in decision.observation.splitlines()[2:]]
    squares = [(x, y) for y, row in enumerate(reversed(rows)) for x, cell in enumerate(row) if cell == mark]
    return sum(1 << (x * (len(rows) + 1) + y) for x, y in squares)


def looking(depth: int) -> Callable[[InformationSet], dict[str, float]]:
    """ConnectFour as the search plays it, from the text alone."""

    def odds(decision: InformationSet) -> dict[str, float]:
        own, other = (stones(decision, mark) for mark in ("XO" if decision.agent_id == "X" else "OX"))
        best = {str(column + 1) for column in best_columns(Grid(), own, other, depth)}
        return {action: float(action in best) / len(best) for action in decision.legal_actions}

    return odds


@pytest.mark.parametrize(("player", "opponent"), [("random", uniform_player), ("minimax", minimax_player)])
def test_rates_are_those_of_the_exact_chances(player: str, opponent: Any) -> None:
    """Uniform play at TicTacToe: within four standard errors of what the walk over all lines gives."""
    numbers = Against(player, games=200)(TIC_TAC_TOE, Asked(uniform))
    exact = [chances(uniform_player, opponent, mark) for mark in "XO"]
    for what, of in (("win_rate", "win"), ("draw_rate", "draw"), ("loss_rate", "loss")):
        expected = sum(getattr(chance, of) for chance in exact) / 2
        assert numbers[f"{what}_{player}"] == pytest.approx(expected, abs=4 * (0.25 / 200) ** 0.5)
    assert numbers[f"illegal_{player}"] == 0.25


def test_the_depth_of_the_solver_is_an_option_and_seats_are_balanced() -> None:
    against = Against("solver", games=24, name="depth_2", env_config={"expert_depth": 2})
    asked = Asked(looking(4))
    strong = against(CONNECT_FOUR, asked)
    assert set(strong) == set(against.columns) and sum(list(strong.values())[:3]) == pytest.approx(1.0)
    assert strong["failed_depth_2"] == 0
    assert strong["win_rate_depth_2"] > 0.5 > strong["loss_rate_depth_2"], "who looks deeper wins"
    weak = Against("solver", games=24, name="depth_2", env_config={"expert_depth": 2})(CONNECT_FOUR, Asked(uniform))
    assert weak["win_rate_depth_2"] < 0.2 and weak == against(CONNECT_FOUR, Asked(uniform)), "the same games"
    first = [decision for decision in asked.seen if not decision.replies]
    assert [decision.agent_id for decision in first].count("X") == 12 and len(first) == 24
    last = max(asked.seen, key=lambda decision: len(decision.replies))
    assert len(last.observations) == len(last.replies) + 1


def test_the_most_likely_move_and_games_in_which_all_reply_at_once() -> None:
    scissors = GameConfig(env="lmgame/RockPaperScissors-v0")
    weights = {"rock": 3.0, "paper": 2.0, "scissors": 1.0}

    def mostly_rock(decision: InformationSet) -> dict[str, float]:
        return {action: weights[action] / 6 for action in decision.legal_actions}

    for greedy in (True, False):
        asked = Asked(mostly_rock)
        numbers = Against("random", games=8, greedy=greedy)(scissors, asked)
        played = {reply for decision in asked.seen for reply in decision.replies}
        assert (played == {"rock"}) is greedy and 0 < numbers["win_rate_random"] + numbers["draw_rate_random"] <= 1


@pytest.mark.parametrize("greedy", [False, True])
def test_replies_after_reasoning_have_seeds_of_their_own(greedy, tiny_model_dir, monkeypatch) -> None:
    """No two turns share one, in a game or in games that are played after one another; what is most likely is asked
    for at temperature 0.
    """
    monkeypatch.setattr(measure, "AT_ONCE", 4)
    asked, requests = engine_policies(tiny_model_dir)
    numbers = Against("random", games=10, greedy=greedy)(TIC_TAC_TOE, asked)
    assert numbers["failed_random"] == 0 and len(requests) > 20
    assert len({request.sampling.seed for request in requests}) == len(requests)
    assert {request.sampling.temperature for request in requests} == {0.0 if greedy else 0.7}


@pytest.mark.parametrize("player", ["random", "solver"])
@pytest.mark.parametrize(
    ("game", "config"),
    [("Werewolf", {}), ("Negotiation", {}), ("Debate", {}), ("IteratedPrisonersDilemma", {"chat_turns": 1})],
)
def test_in_turns_of_free_talk_it_says_what_it_likes(game: str, config: dict[str, Any], player: str) -> None:
    """What it said stands among its replies at later decisions."""
    of = GameConfig(env=f"lmgame/{game}-v0", env_config=config)
    measure, asked = Against(player, games=14, greedy=player == "solver"), Talking("I saw nothing, and say so.")
    assert measure.problem(of) is None
    numbers = list(measure(of, asked).values())
    assert numbers[3] == 0 and sum(numbers[:3]) == pytest.approx(1.0)
    talk = [decision for decision in asked.seen if not decision.legal_actions]
    moves = [decision for decision in asked.seen if decision.legal_actions]
    assert talk and asked.greedy == {player == "solver"}
    assert numbers[4] == pytest.approx(0.25 * len(moves) / len(asked.seen)), "no word is illegal"
    assert any(asked.words in decision.replies for decision in moves or asked.seen) or game == "Debate"
    assert all(len(decision.observations) == len(decision.replies) + 1 for decision in asked.seen)


def test_talk_that_cannot_be_read_says_nothing_and_is_illegal() -> None:
    numbers = Against("random", games=4)(GameConfig(env="lmgame/Debate-v0"), Talking(None))
    assert numbers["illegal_random"] == 1.0 and numbers["failed_random"] == 0.0 and numbers["loss_rate_random"] == 1.0


class BadGame(TicTacToe):
    """TicTacToe of another author, with faults where the level's seed is odd, or everywhere."""

    def __init__(self, fault: str, everywhere: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.fault, self.everywhere = fault, everywhere

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.bad = self.everywhere or bool(seed and seed % 2)
        return super().reset(seed, options)

    def step(self, action: Any) -> None:
        if not self.bad:
            super().step(action)
        elif self.fault == "hang":
            LET_GO.wait()
        elif self.fault == "raise":
            raise ValueError("boom")


def test_games_that_fail_are_counted_and_end_nothing_else() -> None:
    """Neither a game that raises or hangs, nor one that never ends, takes more than its own limits."""
    asked = Asked(uniform)
    game = GameConfig(env=f"{__name__}:BadGame", env_config={"fault": "raise"})
    asked.rollout_options = TextRolloutOptions()
    bad = sum(stable_seed("against", level) % 2 for level in range(4)) / 4
    numbers = list(Against("random", games=8)(game, asked).values())
    assert numbers[3] == bad and 0 < bad < 1 and sum(numbers[:4]) == pytest.approx(1.0)
    short = {"hang": {"env_step_timeout_s": 0.2}, "stay": {"episode_timeout_s": 0.2}}
    try:
        for fault, limit in short.items():
            asked.rollout_options = TextRolloutOptions(**limit)
            game = GameConfig(env=f"{__name__}:BadGame", env_config={"fault": fault, "everywhere": True})
            numbers = list(Against("random", games=2)(game, asked).values())
            assert numbers[:4] == [0, 0, 0, 1], fault
    finally:
        LET_GO.set()


class Unlisted(TicTacToe):
    """TicTacToe that lists no legal actions and draws none."""

    def legal_actions(self, agent: str) -> tuple[str, ...]:
        return ()

    def random_action(self, agent: str, rng: Any) -> None:
        return None


class Bad(TicTacToe):
    """TicTacToe of another author that cannot begin."""

    looked_at: ClassVar[list[str]] = []

    def __init__(self, fault: str, **options: Any) -> None:
        super().__init__(**options)
        self.fault = fault
        self.looked_at.append(fault)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if self.fault == "hang":
            LET_GO.wait()
        elif self.fault == "raise":
            raise RuntimeError("boom")
        super().reset(seed, options)
        self.agents = self.agents if self.fault != "nobody" else []


@pytest.mark.parametrize(
    ("fault", "says"), [("raise", "boom"), ("hang", "took longer"), ("nobody", "nobody is to act")]
)
def test_a_game_that_cannot_begin_has_no_such_games_and_is_looked_at_once(fault, says, monkeypatch) -> None:
    LET_GO.clear()
    for module in (measure, game_calls):
        monkeypatch.setattr(module, "CALL_LIMIT_S", 3.0 if fault == "hang" else 60.0)
    game = GameConfig(env=f"{__name__}:Bad", env_config={"fault": fault})
    try:
        problems = {Against("random").problem(game) for _ in range(2)}
    finally:
        LET_GO.set()
    assert len(problems) == 1 and says in str(problems) and Bad.looked_at.count(fault) == 1


def test_a_game_that_outgrows_the_context_is_counted_and_the_others_go_on() -> None:
    class Short(Asked):
        async def answer(self, decision: InformationSet, *asked: Any, **how: Any) -> Answer:
            if len(decision.replies) == 3:
                raise NoRoom([decision], 99)
            return await super().answer(decision, *asked, **how)

    class Broken(Asked):
        async def answer(self, *asked: Any, **how: Any) -> Answer:
            raise NotAnswered("gone")

    full, short = (list(Against("random", games=40)(TIC_TAC_TOE, kind(uniform)).values()) for kind in (Asked, Short))
    assert full[3] == 0 < short[3] < 1 and sum(short[:4]) == pytest.approx(1.0)
    assert all(0 < few <= all_ for few, all_ in zip(short[:1] + short[2:3], full[:1] + full[2:3], strict=True))
    with pytest.raises(NotAnswered, match="gone"):
        Against("random", games=4)(TIC_TAC_TOE, Broken(uniform))


def test_decisions_asked_about_after_one_another_have_seeds_of_their_own(tiny_model_dir, monkeypatch) -> None:
    monkeypatch.setattr(measures, "AT_ONCE", 4)
    asked, requests = engine_policies(tiny_model_dir)
    assert len(asked.ask(decisions({})[:10], 3)) == 10 and len(requests) == 30
    assert len({request.sampling.seed for request in requests}) == 30


def test_how_many_are_in_play_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Against("random", games=10)(TIC_TAC_TOE, Asked(uniform))
    monkeypatch.setattr(measure, "AT_ONCE", 4)
    assert Against("random", games=10)(TIC_TAC_TOE, Asked(uniform)) == together


def test_a_game_without_the_option_is_left_out(make_config: Callable[..., Any]) -> None:
    depth = {"type": "against", "player": "solver", "name": "depth_2", "env_config": {"expert_depth": 2}}
    games = [CONNECT_FOUR.env, "lmgame/KuhnPoker-v0"]

    def validated() -> Any:
        config = make_config(
            env=CONNECT_FOUR.env,
            env_config={},
            evaluation_interval=1,
            evaluation_config={"games": games, "measures": [depth]},
        )
        config.validate()
        return config

    config = validated()
    played = measured_columns(config, [depth], [GameConfig(env=game) for game in games])
    assert ("win_rate_depth_2",) in played and ("failed_depth_2",) in played
    depth["env_config"] = {"expert_dept": 2}
    with pytest.raises(ConfigError, match=r"measures\[0\].*ConnectFour.*expert_dept.*KuhnPoker.*env_config"):
        validated()


def test_what_is_wrong_is_said_before_anything_starts(make_config: Callable[..., Any]) -> None:
    def validated(env: str, *measures: Any) -> Any:
        config = make_config(env=env, env_config={}, evaluation_interval=1, evaluation_config={"measures": [*measures]})
        config.validate()
        return config

    random_player = {"type": "against", "player": "random"}
    depth = {"type": "against", "player": "solver", "name": "depth_2", "env_config": {"expert_depth": 2}}
    dice = {**random_player, "player": "solver", "env_config": {"dice": 2, "sides": 4}}
    config = validated(CONNECT_FOUR.env, random_player, depth)
    assert ("win_rate_depth_2",) in measured_columns(config, config.run.evaluation_config.measures, [CONNECT_FOUR])
    check_config({"evaluation_config": {"measures": [random_player, depth]}}, Gate("a stranger", "trust it"))
    for env, wrong, says in (
        ("lmgame/Sokoban-v0", random_player, "nobody plays against another"),
        (f"{__name__}:Unlisted", random_player, "the random player needs a game that lists its legal actions"),
        ("lmgame/LiarsDice-v0", dice, "LiarsDice-v0 has no solver with these options"),
        (CONNECT_FOUR.env, {**random_player, "player": "rnadom"}, "did you mean 'random'"),
        (CONNECT_FOUR.env, {**depth, "env_config": {"depth": 2}}, "depth"),
        (CONNECT_FOUR.env, {**depth, "name": "depth/2"}, "letters and digits"),
        (CONNECT_FOUR.env, {**depth, "env_config": [1]}, r"measures\[0\].env_config: must be"),
        (CONNECT_FOUR.env, {**depth, "games": 10**9}, "equal to 1000000"),
    ):
        with pytest.raises(ConfigError, match=says):
            validated(env, wrong)
    with pytest.raises(ConfigError, match=r"names already: .*win_rate_random"):
        validated(CONNECT_FOUR.env, random_player, {**random_player, "games": 8})
