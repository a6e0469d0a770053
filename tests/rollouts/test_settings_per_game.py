"""What an entry of ``games`` says itself: who goes before whom, and what reaches prompts, requests and learners."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rllib_lmgame.algorithms.ppo import LMGamePPOConfig
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import as_mapping
from rllib_lmgame.cli.game_list import suite, with_names
from rllib_lmgame.datasets.replay import recorded_session, replay
from rllib_lmgame.evaluation.comparison.models import PoliciesOfRun
from rllib_lmgame.evaluation.comparison.run import Evaluation
from rllib_lmgame.evaluation.evaluate import games_of_run
from rllib_lmgame.evaluation.players.language_model import LocalModel, options_of_policy, talked_to
from rllib_lmgame.policies.options import TALK, LanguageModelOptions
from rllib_lmgame.rollouts.env_runner import TextGameEnvRunner
from rllib_lmgame.rollouts.episode_log import read_log
from rllib_lmgame.rollouts.episodes import episode_metrics
from rllib_lmgame.rollouts.item_order import evaluated_levels
from rllib_lmgame.rollouts.options import GameConfig, read_games
from rllib_lmgame.rollouts.plans import AgentAssignment, plan_episodes, plan_evaluation
from rllib_lmgame.rollouts.records import CUSTOM_DATA_KEY, PlaySettings
from rllib_lmgame.rollouts.sources import AgentMapper

MakeRunner = Callable[..., TextGameEnvRunner]
SOKOBAN = {"env": "lmgame/Sokoban-v0", "env_config": {"max_turns": 2}}


def config_of(text: str) -> LMGamePPOConfig:
    return LMGamePPOConfig().update_from_dict(yaml.safe_load(text))


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "system_prompt": st.sampled_from([None, "", "Play.", "{rules} In {max_turns} turns."]),
    "conversation_start": st.sampled_from(["system", "user"]),
    "reply_format": st.sampled_from([{"type": "tags"}, {"type": "boxed"}]),
    "answer_tag": st.sampled_from(["answer", "move"]),
    "think_tag": st.sampled_from(["think", "reason"]),
    "think": st.sampled_from(["off", "optional", "required"]),
    "format_instructions": st.booleans(),
    "turn_suffix": st.sampled_from(["", "{turns_left} left"]),
    "reply_prefill": st.sampled_from(["", "<answer>"]),
    "history": st.sampled_from(["keep", "strip_think", "window"]),
    "history_window": st.integers(1, 3),
    "max_tokens_per_turn": st.integers(1, 99),
    "min_tokens_per_turn": st.sampled_from([None, 1]),
    "max_tokens_per_episode": st.sampled_from([None, 500]),
}


@given(*(st.fixed_dictionaries({}, optional=VALUES) for _ in range(3)))
def test_a_policys_own_goes_before_a_games_and_that_before_everybodys(shared, game, policy) -> None:
    assert set(VALUES) == set(TALK)
    config = LMGamePPOConfig().update_from_dict(
        {
            "language_model": shared,
            "games": [{**SOKOBAN, "name": "one", "language_model": game}, {**SOKOBAN, "name": "two"}],
            "policies": {"own": {"language_model": policy}, "other": {}},
        }
    )
    one, two = config.training_games()
    default = {key: value for key, value in as_mapping(LanguageModelOptions()).items() if key in TALK}
    for name, own in (("own", policy), ("other", {})):
        for entry, asked in ((one, game), (two, {}), (None, {})):
            found = as_mapping(config.language_model_of(name, entry))
            assert {key: found[key] for key in TALK} == default | shared | asked | own
    again = LMGamePPOConfig().update_from_dict(json.loads(json.dumps(config.run.as_yaml())))
    assert again.training_games() == config.training_games(), "a checkpoint keeps them"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("games: [{env: A, name: x}, {env: B, name: x}]", "games[1].name", "config.games[0] is called 'x' too"),
        ("games: [lmgame/Maze-v0, {env: B, name: lmgame_Maze-v0}]", "games[1].name", "without a name is called"),
        ("games: [{env: A, name: '7'}]", "games[0].name", "not digits alone"),
        ("games: [{env: A, language_model: {think: no}}]", "games[0].language_model.think", "must be 'off', "),
        (
            "games: [{env: A, language_model: {turn_suffix: '{x}'}}]",
            "games[0].language_model.turn_suffix",
            "{turns_left}",
        ),
        (
            "evaluation_config: {games: [{env: A, temperature: {points: [[0, 1]]}}]}",
            "evaluation_config.games[0].temperature",
            "evaluations are compared",
        ),
    ],
)
def test_a_wrong_entry_is_named(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(text)
    assert caught.value.path == f"config.{path}" and words in caught.value.message


MAZE = "env: lmgame/Maze-v0"


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        (
            f"games: [{{{MAZE}, language_model: {{max_tokens_per_turn: 4096}}}}]",
            "games[0].language_model.max_tokens_per_turn",
            "no room",
        ),
        (
            "{training: {advantage_estimator: grpo}, text_rollouts: {group_size: 4}, "
            f"games: [{{{MAZE}, episodes: 64, group_size: 1}}]}}",
            "games[0].group_size",
            "compares the episodes of a group",
        ),
        (
            "{num_learners: 3, training: {advantage_estimator: grpo}, text_rollouts: {episodes_per_iteration: 16}, "
            f"games: [{{{MAZE}, episodes: 16, group_size: 8}}]}}",
            "text_rollouts.episodes_per_iteration",
            "a whole group for each of 3 learners",
        ),
        (
            f"games: [{{{MAZE}, name: a, weight: {{points: [[0, 1], [5, 0]]}}}}, {{{MAZE}, name: b, episodes: 8}}]",
            "games[0].weight",
            "a weight of 0 at once",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_ray_starts(text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(text).validate()
    assert caught.value.path == f"config.{path}" and words in caught.value.message


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.booleans()), min_size=1, max_size=4),
    st.integers(0, 6),
    st.integers(0, 99),
)
def test_games_have_their_groups_and_numbers_exactly(entries, groups: int, seed: int) -> None:
    """Games by weight share what the others leave; group sizes are each game's own."""
    shared = entries[0][0]
    sizes = [size if exact else shared for size, _, exact in entries]
    exact = [size * count if own else None for (_, count, own), size in zip(entries, sizes, strict=True)]
    rest = groups * shared if None in exact else 0
    total = rest + sum(count or 0 for count in exact)
    plans = plan_episodes(
        total, run_seed=seed, purpose="t", iteration=1, game_weights=[1.0] * len(sizes), sizes=sizes, exact=exact
    )
    assert len(plans) == total and [plan.index for plan in plans] == list(range(total))
    played = Counter(plan.game for plan in plans)
    assert all(count is None or played[game] == count for game, count in enumerate(exact))
    of_group = Counter((plan.group, plan.game, plan.seed) for plan in plans)
    assert all(count == sizes[game] for (_, game, _), count in of_group.items())
    assert len({group for group, _, _ in of_group}) == len(of_group)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.sampled_from(["evaluation", "validation"]))
def test_a_games_levels_in_an_evaluation_are_the_same_beside_any_others(episodes: list[int], purpose: str) -> None:
    together = plan_evaluation(len(episodes), 99, purpose, exact=episodes)
    assert [plan.index for plan in together] == list(range(sum(episodes)))
    assert len({plan.episode_id for plan in together}) == len({plan.group for plan in together}) == sum(episodes)
    for number, count in enumerate(episodes):
        own = [(plan.seed, plan.number) for plan in together if plan.game == number]
        assert own == [(plan.seed, plan.number) for plan in plan_evaluation(1, count, purpose)]
    if len(set(episodes)) == 1:
        assert plan_evaluation(len(episodes), episodes[0], purpose) == together


def test_the_command_and_the_evaluation_in_training_play_the_same_levels() -> None:
    listed = GameConfig(env="agentgym:textcraft", env_config={"url": "http://127.0.0.1:9", "ids": "0-39"})
    games = (GameConfig(env="lmgame/Sokoban-v0", name="one"), listed, GameConfig(env="lmgame/Maze-v0", episodes=3))
    in_training = evaluated_levels(games, 5)
    command = Evaluation({game.called(game.env): game for game in games}, (), levels=5)
    by_command = Counter((plan.game, plan.seed) for *_, plan in command.plans())
    assert by_command == Counter((plan.game, plan.seed) for plan in in_training) and len(by_command) == 13


ONE = {
    **SOKOBAN,
    "name": "one",
    "language_model": {
        "system_prompt": "You have {max_turns} turns.\n{rules}",
        "answer_tag": "move",
        "think": "optional",
    },
    "temperature": 0.5,
    "format_penalty": -7.0,
    "reward_scale": 3.0,
}
TWO = {**SOKOBAN, "name": "two", "language_model": {"max_tokens_per_turn": 20, "history": "window"}}


def played(runner: TextGameEnvRunner, count: int = 8, **settings: Any) -> Any:
    games = runner.config.training_games()
    plans = plan_episodes(count, run_seed=0, purpose="t", iteration=0, game_weights=[1.0] * len(games))
    seated, _ = AgentMapper(runner.config).assigned(plans, games)
    result = runner.play(seated, PlaySettings(games, **settings))
    assert result.error is None and not result.failures
    return result


def test_prompts_and_requests_are_those_of_runs_with_these_settings_for_all(make_runner: MakeRunner) -> None:
    """Token by token; two entries of one game in one run, each beside a run that has nothing but it."""
    games = read_games([ONE, TWO], "config.games")
    both = make_runner(games=games, answer=lambda request: [0])
    result = played(both)
    asked = {number: [] for number in range(2)}
    of_episode = {summary.episode_id: summary.game for summary in result.summaries}
    for request in both.client("player").requests:  # type: ignore[attr-defined]
        asked[of_episode[request.request_id.split("/")[0]]].append(request)
    for number, entry in enumerate((ONE, TWO)):
        alone = make_runner(
            model=entry["language_model"],
            env_config=SOKOBAN["env_config"],
            rollouts={"format_penalty": entry.get("format_penalty", 0.0)},
            answer=lambda request: [0],
        )
        plain = tuple(
            game.model_copy(update={"name": None, "language_model": {}, "temperature": None}) for game in games
        )
        plans = plan_episodes(8, run_seed=0, purpose="t", iteration=0, game_weights=[1.0, 1.0])
        own = [plan for plan in AgentMapper(alone.config).assigned(plans, plain)[0] if plan.game == number]
        assert alone.play(own, PlaySettings(plain)).error is None
        theirs = alone.client("player").requests  # type: ignore[attr-defined]
        assert [(each.request_id, list(each.prompt_ids)) for each in asked[number]] == [
            (each.request_id, list(each.prompt_ids)) for each in theirs
        ]
        assert {each.sampling.max_tokens for each in asked[number]} == {each.sampling.max_tokens for each in theirs}
        assert {each.sampling.temperature for each in asked[number]} == {entry.get("temperature", 1.0)}
    chats = {id(chat) for chat in both._chats.values()}
    played(both)
    assert {id(chat) for chat in both._chats.values()} == chats and len(chats) == 3, "one for everybody, one a game"


def test_numbers_logs_and_replays_carry_the_name(make_runner: MakeRunner, tmp_path) -> None:
    games = read_games([ONE, TWO], "config.games")
    runner = make_runner(games=games, answer=lambda request: [0], episode_log_dir=str(tmp_path))
    result = played(runner, log="train")
    numbers = episode_metrics(result.summaries)
    assert set(numbers["games"]) == {"one", "two"} and numbers["games"]["one"]["num_episodes"] == 4
    for episode, summary in zip(result.episodes, result.summaries, strict=True):
        data = episode.agent_episodes["player"].custom_data[CUSTOM_DATA_KEY]
        is_one = summary.game == 0
        assert data.game == summary.game_id == ("one" if is_one else "two")
        assert (data.temperature, data.reward_scale) == ((0.5, 3.0) if is_one else (None, None))
        penalty = min(episode.agent_episodes["player"].get_rewards())
        assert (penalty < -6) == is_one
    records = read_log(tmp_path / "train-0.jsonl")
    assert Counter(record["name"] for record in records) == {"one": 4, "two": 4}
    for record in records:
        part = replay(recorded_session(record, "here"), runner, record["episode_id"]).agent_episodes["player"]
        assert part.custom_data[CUSTOM_DATA_KEY].game == record["name"]
        text = runner.chat("player").tokenizer.decode(part.get_extra_model_outputs("turn", 0).prompt_ids)
        assert ("You have 2 turns." in text) == (record["name"] == "one")


def test_a_checkpoint_alone_plays_at_the_temperature_of_its_evaluation() -> None:
    """Not at that which a game has in training."""
    config = config_of("{games: [{env: lmgame/Maze-v0, temperature: 0.7}], evaluation_config: {temperature: 0}}")
    assert [game.temperature for game in games_of_run(config, "test", {})] == [None]


@pytest.mark.parametrize(("second", "own"), [("boxed", True), ("tags", False)])
def test_a_checkpoint_plays_a_game_as_all_its_entries_ask(make_runner: MakeRunner, second: str, own: bool) -> None:
    """At tables and in tournaments; where two entries differ nobody knows which is meant."""
    maze = "env: lmgame/Maze-v0, language_model: {reply_format"
    config = config_of(f"games: [{{name: a, {maze}: boxed}}}}, {{name: b, {maze}: {second}}}}}, lmgame/FrozenLake-v0]")
    options = options_of_policy(config, "player")
    assert not options_of_policy(LMGamePPOConfig(), "player").in_games, "of a policy that learned from files"
    assert options.language_model.reply_format.type == "tags"
    asked = {"reply_format": {"type": "boxed"}} if own else {}
    assert {game: each.reply_format.type for game, each in options.in_games.items()} == (
        {"lmgame/Maze-v0": "boxed"} if own else {}
    )
    runner = SimpleNamespace(player=lambda settings, assignment, game: game.language_model)
    policies = SimpleNamespace(_runner=runner, _asked=None, _opponents={}, _talked_to=talked_to(config))
    chat, game = make_runner(games=[SOKOBAN], answer=lambda _: [0]).chat("player"), GameConfig(env="lmgame/Maze-v0")
    assert PoliciesOfRun.player(policies, AgentAssignment("player"), game) == asked, "with --games"  # type: ignore
    model, game = (
        SimpleNamespace(options=options, _asked={}, _chat=chat),
        game.model_copy(update={"language_model": asked}),
    )
    assert not own or LocalModel._chat_of(model, game).options.reply_format.type == "boxed"  # type: ignore


def test_a_suite_has_every_entry_by_its_name(tmp_path) -> None:
    thinks = {"a": "off", "b": "required"}
    entries = [{**SOKOBAN, "name": name, "language_model": {"think": think}} for name, think in thinks.items()]
    entries[0]["temperature"] = 0.7
    config = {"evaluation_duration": 7, "evaluation_config": {"games": entries, "explore": False}}
    file = tmp_path / "suite.yaml"
    file.write_text(yaml.safe_dump({"x": {"run": "LMGamePPO", "env": "lmgame/Maze-v0", "config": config}}))
    games, episodes = suite(str(file))
    assert episodes == 7
    assert {name: game.language_model["think"] for name, game in with_names(games).items()} == thinks
    assert [game.temperature for game in games] == [0.7, 0.0]
