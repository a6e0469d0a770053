"""``rllib export-env``: what TRL and verifiers load plays the game, with stand-ins for them and with themselves.

``VERIFIERS_PYTHON`` names a Python that has verifiers, and what a game of this package needs.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.cli.export_env import module_name
from rllib_lmgame.cli.main import main
from rllib_lmgame.envs import make_session
from rllib_lmgame.policies.one_seat import OneSeat

LAKE = "lmgame/FrozenLake-v0"
ONE_REPLY = {"max_actions_per_turn": 20}
"""So that the solver wins with one reply."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def exported(trainer: str, *arguments: str, game: str = LAKE) -> Path:
    """The module that the command writes."""
    options = ["--env-config", json.dumps(ONE_REPLY)] * (game == LAKE)
    assert main(["export-env", game, "--for", trainer, "--to", trainer, *options, *arguments]) == 0
    return Path(trainer) / f"{module_name(game)}.py"


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def winning(**options: Any) -> dict[str, str]:
    """What is seen first of a level -> what the solver replies."""
    session = make_session(LAKE, {**ONE_REPLY, **options})
    replies = {}
    for seed in range(8):
        session.reset(seed)
        replies[session.observe("player").text] = str(session.expert_action("player"))
    return replies


def test_one_seat_is_played_and_the_others_reply_by_themselves() -> None:
    game = OneSeat("lmgame/TicTacToe-v0", {}, {"X": "random"})
    assert game.seat == "O" and "three" in game.rules.lower() and game.over
    with pytest.raises(ValueError, match="the game is over"):
        game.reply("1")
    for seed in (3, 3, 4):
        seen = [game.reset(seed)]
        assert sum(seen[0].count(mark) for mark in "XO") >= 1, "X has moved"
        while not game.over:
            seen.append(game.reply(str(game._session.expert_action("O"))))
        assert game.total >= 0 and game.info["success"] in (True, False)
    dilemma = OneSeat("lmgame/IteratedPrisonersDilemma-v0", {}, {"player_1": "random"})
    dilemma.reset(0)
    while not dilemma.over:
        dilemma.reply(dilemma._session.observe("player_0").legal_actions[0])
    assert dilemma.total != 0
    dilemma.close()
    for others in ({}, {"X": "random", "O": "random"}, {"X": "random", "Z": "random"}):
        with pytest.raises(ConfigError, match="others: must name all seats but one of X, O"):
            OneSeat("lmgame/TicTacToe-v0", {}, others)
    with pytest.raises(ConfigError, match=r"others\.X: unknown player 'rnadom'"):
        OneSeat("lmgame/TicTacToe-v0", {}, {"X": "rnadom"})


def test_trls_environment_plays_by_its_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(exported("trl"))
    game = module.Game()
    for seen, reply in itertools.islice(winning().items(), 3):
        seeds = [seed for seed in range(8) if game.reset(seed=seed, prompt=[]) == seen]
        game.reset(seed=seeds[0])
        assert game.get_reward() == 0 and not game.act("jump").endswith("The game is over.")
        assert game.act(action=reply).endswith("The game is over.") and game.get_reward() == pytest.approx(0.9)
        with pytest.raises(ValueError, match="the game is over"):
            game.act("Up")
    tools = [name for name in vars(module.Game) if not name.startswith("_")]
    assert tools == ["reset", "act", "get_reward"] and "Args:" in module.Game.act.__doc__
    rows: list[Any] = []
    sets = ModuleType("datasets")
    sets.Dataset = SimpleNamespace(from_list=rows.extend)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", sets)
    module.levels(2, first=5)
    assert [row["seed"] for row in rows] == [5, 6] and "tool `act`" in rows[0]["prompt"][0]["content"]


Data, Played, Settings = (TypeVar(name) for name in ("Data", "Played", "Settings"))


def verifiers_stand_in() -> ModuleType:
    """As much of `verifiers.v1` as an exported game asks for."""

    class Values:
        def __init__(self, **values: Any) -> None:
            self.__dict__.update(values)

    class Task(Generic[Data, Played, Settings]):
        def __init__(self, data: Any, config: Any) -> None:
            self.data = data

    class Taskset(Generic[Data, Settings]):
        def __init__(self, config: Any) -> None:
            self.config = config

    class Env(Generic[Settings]):
        pass

    v1 = ModuleType("verifiers.v1")
    parts = {"Task": Task, "Taskset": Taskset, "Env": Env, "Agents": Any}
    parts |= dict.fromkeys(("TaskData", "TasksetConfig", "EnvConfig", "AgentConfig", "SubprocessConfig"), Values)
    v1.__dict__.update(parts, State=object, TaskConfig=object)
    return v1


def test_verifiers_environment_talks_with_the_policy_until_the_game_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", ModuleType("verifiers"))
    monkeypatch.setitem(sys.modules, "verifiers.v1", verifiers_stand_in())
    module = loaded(exported("verifiers"))
    replies = winning(split="test")
    recorded: list[tuple[str, float]] = []
    trace = SimpleNamespace(
        record_reward=lambda name, value, weight: recorded.append((name, value * weight)),
        record_metric=lambda name, value: recorded.append((name, value)),
    )

    class Talk:
        def __init__(self, leaves: bool) -> None:
            self.trace, self.leaves, self.turns = trace, leaves, 0

        async def turn(self, seen: str) -> Any:
            self.turns += 1
            gone = self.leaves and self.turns > 1
            return SimpleNamespace(terminated=gone, last_reply="jump" if self.turns == 1 else replies[seen])

    def agents(leaves: bool) -> Any:
        @asynccontextmanager
        async def interaction(task: Any) -> Any:
            yield Talk(leaves)

        return SimpleNamespace(player=SimpleNamespace(interaction=interaction))

    config = SimpleNamespace(options={"split": "test"}, task=None)
    tasks = list(itertools.islice(module.GameTaskset(config).load(), 2))
    assert [task.data.seed for task in tasks] == [0, 1] and tasks[0].data.options == {**ONE_REPLY, "split": "test"}
    assert tasks[0].data.system_prompt.startswith("You cross a frozen lake")
    env = module.GameEnv()
    first = next(iter(replies))
    refused = OneSeat(LAKE, tasks[0].data.options)
    refused.reset(0)
    replies[refused.reply("jump")] = replies[first]
    asyncio.run(env.run(tasks[0], agents(leaves=False)))
    assert dict(recorded) == {"game": pytest.approx(0.9), "success": 1.0}
    recorded.clear()
    asyncio.run(env.run(tasks[0], agents(leaves=True)))
    assert dict(recorded) == {"game": pytest.approx(-0.1), "success": 0.0}


def test_what_is_written_is_small_and_says_what_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    path = exported(
        "verifiers", "--seats", "random", "remote", "--env-config", "{split: test}", game="lmgame/TicTacToe-v0"
    )
    text = path.read_text(encoding="utf-8")
    values = {
        part.target.id: ast.literal_eval(part.value)
        for part in ast.parse(text).body
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.value is not None
    }
    assert values == {"OPTIONS": {"split": "test"}, "OTHERS": {"X": "random"}}
    assert "\nGAME = 'lmgame/TicTacToe-v0'\n" in text and text.count("\n") < 80 and "NAME" not in text
    ours = [line for line in text.splitlines() if "rllib_lmgame" in line and "import" in line]
    assert ours == ["from rllib_lmgame.policies.one_seat import OneSeat"]
    assert 'name = "lmgame-tic-tac-toe"' in (path.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert "vf-eval lmgame-tic-tac-toe -m MODEL" in capsys.readouterr().out
    heavy = (
        "import sys; import rllib_lmgame.policies.one_seat; assert not {'ray', 'torch', 'vllm'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", heavy], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lmgame/FrozenLak-v0", "--for", "trl"], "did you mean 'lmgame/FrozenLake-v0'"),
        (["lmgame/TicTacToe-v0", "--for", "trl"], "--seats: the policy takes one seat of X, O"),
        (["lmgame/TicTacToe-v0", "--for", "trl", "--seats", "remote", "rndom"], "seats.O: unknown player 'rndom'"),
        ([LAKE, "--for", "trl", "--env-config", "{splt: test}"], "env_config.splt"),
        ([LAKE, "--for", "trl", "--to", "there"], "exists; choose"),
    ],
)
def test_what_cannot_be_written_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("there").mkdir()
    Path("there/lmgame_frozen_lake.py").write_text("mine")
    assert main(["export-env", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert Path("there/lmgame_frozen_lake.py").read_text() == "mine" and [path.name for path in Path().iterdir()] == [
        "there"
    ]


def test_modules_are_named_after_games() -> None:
    names = {
        LAKE: "lmgame_frozen_lake",
        "lmgame/GSM8K-v0": "lmgame_gsm8_k",
        "lmgame/2048-v0": "lmgame_2048",
        "agentgym:textcraft": "lmgame_textcraft",
        "my.module:FirstGame": "lmgame_first_game",
        "openenv:http://127.0.0.1:8000/x": "lmgame_openenv",
        "mrlm:math@host:50051": "lmgame_mrlm",
    }
    assert {game: module_name(game) for game in names} == names


STEP = """
import sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template
from lmgame_frozen_lake import GAME, OPTIONS, Game, levels
from rllib_lmgame.envs import make_session

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
letters = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=letters, eos_token="<|im_end|>", pad_token="<|endoftext|>",
    additional_special_tokens=["<|im_start|>"], chat_template=qwen3_chat_template,
)
size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=2, **size))
session, wins = make_session(GAME, OPTIONS), {}
for seed in range(2):
    session.reset(seed)
    wins[session.observe("player").text] = session.expert_action("player")


class Scripted(GRPOTrainer):
    # A tiny model writes no tool call: of each group one reply calls the tool with the solver's move, one does not.
    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        replies = []
        for number, ids in enumerate(prompt_ids):
            text = tokenizer.decode(ids)
            move = next(move for board, move in wins.items() if board in text)
            call = '<tool_call>\\n{"name": "act", "arguments": {"action": "%s"}}\\n</tool_call>' % move
            said = "Well." if "<tool_response>" in text or number % 2 else call
            replies.append(tokenizer.encode(said + "<|im_end|>", add_special_tokens=False))
        return replies, None


before = {name: value.clone() for name, value in model.state_dict().items()}
args = GRPOConfig(
    sys.argv[1], max_steps=1, num_generations=2, per_device_train_batch_size=4, max_completion_length=1024,
    learning_rate=0.1, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1,
)
trainer = Scripted(
    model, args=args, train_dataset=levels(2), environment_factory=Game, processing_class=tokenizer
)
trainer.train()
logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
print(logged)
assert logged["reward"] == 0.5 and logged["tools/call_frequency"] == 0.5, logged
assert logged["tools/failure_frequency"] == 0 and logged["rewards/Game/mean"] == 0.5, logged
assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
"""


@pytest.mark.slow
def test_trl_learns_a_step_of_it() -> None:
    path = exported("trl")
    Path("step.py").write_text(STEP, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{path.parent.resolve()}", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [sys.executable, "step.py", "out"], env=environment, check=False, text=True, capture_output=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]


VERIFIERS = os.environ.get("VERIFIERS_PYTHON")


@contextmanager
def model_that_knows(replies: dict[str, str]) -> Iterator[str]:
    """The address of an OpenAI-compatible endpoint whose model answers what the user said last by ``replies``."""

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = [message["content"] for message in asked["messages"] if message["role"] == "user"][-1]
            said = said if isinstance(said, str) else "".join(part["text"] for part in said)
            base = {"id": "1", "created": 0, "model": "m", "object": "chat.completion.chunk"}
            steps: list[Any] = [
                {**base, "choices": [{"index": 0, "delta": {"role": "assistant", "content": replies[said]}}]},
                {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {**base, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}},
            ]
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for line in (*map(json.dumps, steps), "[DONE]"):
                self.wfile.write(f"data: {line}\n\n".encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(VERIFIERS is None, reason="VERIFIERS_PYTHON names no Python that has verifiers and uv")
def test_verifiers_evaluates_it() -> None:
    path = exported("verifiers")
    programs = Path(str(VERIFIERS)).parent
    with model_that_knows(winning(split="test")) as address:
        command = [
            *(str(programs / "vf-eval"), "lmgame-frozen-lake", "-m", "m", "--no-push", "--no-rich", "-o", "out"),
            *("--client.base-url", address, "--client.api-key-var", "NO_KEY", "--select.limit", "2"),
            *("--env.taskset.options", json.dumps({"split": "test"})),
        ]
        environment = {
            **os.environ,
            "NO_KEY": "none",
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{path.parent.resolve()}",
        }
        done = subprocess.run(command, env=environment, check=False, text=True, capture_output=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    (written,) = Path("out").glob("*/traces.jsonl")
    episodes = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    assert len(episodes) == 2 and all(episode["ok"] for episode in episodes)
    for episode in episodes:
        (trace,) = episode["traces"]
        assert trace["rewards"]["game"]["score"] == 1.0 and trace["metrics"]["success"] == 1.0
