"""Experiment files from the network, against servers in this process."""

from __future__ import annotations

import functools
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rllib_lmgame
from rllib_lmgame.algorithms.trust import SECTIONS, check_config
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.group import declared, option
from rllib_lmgame.base.schedule import ScheduleOptions, read_schedule
from rllib_lmgame.envs.registry import options_of, own_games
from rllib_lmgame.experiments.files.fetched import refuse_code
from rllib_lmgame.experiments.files.reading import MAX_BYTES, load_text, read_experiments
from rllib_lmgame.experiments.files.remote import fetch
from rllib_lmgame.experiments.spec import Source, make_specs
from rllib_lmgame.settings.sections.language_model import LanguageModelOptions, PlayerOptions
from rllib_lmgame.settings.trust import Gate, takes

FILE = "a:\n  run: PPO\n  env: CartPole-v1\n  stop: {training_iteration: 1}\n  config: {lr: 1e-3}\n"
Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def serve():
    """Function that serves ``path -> (status, headers, content)`` and returns the address."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: dict[str, Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, headers, content = answers[self.path]
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(content))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_file_is_fetched_also_after_a_redirection(serve) -> None:
    address = serve(
        {"/x.yaml": (200, {"Content-Type": "text/plain"}, FILE.encode()), "/old": (302, {"Location": "/x.yaml"}, b"")}
    )
    for path in ("/x.yaml", "/old"):
        (spec,) = read_experiments(address + path, ["config.gamma=0.9"])
        assert (spec.name, spec.options.run, spec.config["lr"], spec.config["gamma"]) == ("a", "PPO", 1e-3, 0.9)


def test_errors_name_address_and_line(serve) -> None:
    address = serve({"/x.yaml": (200, {}, FILE.replace("stop:", "stopp:").encode())})
    with pytest.raises(ConfigError, match=rf"{address}/x.yaml:4: .*stopp"):
        read_experiments(f"{address}/x.yaml")


def test_what_is_not_taken(serve) -> None:
    address = serve(
        {
            "/none.yaml": (404, {}, b""),
            "/page.yaml": (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>"),
            "/large.yaml": (200, {}, b"a: " + b"x" * MAX_BYTES),
            "/cut.yaml": (200, {"Content-Length": "500"}, FILE.encode()),
            "/ftp.yaml": (302, {"Location": "ftp://127.0.0.1/x.yaml"}, b""),
            "/circle.yaml": (302, {"Location": "/circle.yaml"}, b""),
        }
    )
    for path, words in {
        "/none.yaml": "answers 404 Not Found",
        "/page.yaml": "web page",
        "/large.yaml": r"more than 1,000,000 bytes",
        "/cut.yaml": "broke off",
        "/ftp.yaml": "not followed",
        "/circle.yaml": "answers 302",
        "/x.py": "Python is not run from the network",
    }.items():
        with pytest.raises(ConfigError, match=words):
            read_experiments(address + path)


class Drip:
    """A server of one answer, byte by byte."""

    def __init__(self) -> None:
        self.sent = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self._stop = threading.Event()

    def serve(self, content: bytes, pause_s: float) -> str:
        """Send each byte after a pause; returns the address."""
        threading.Thread(target=self._answer, args=(content, pause_s), daemon=True).start()
        return f"http://127.0.0.1:{self._server.getsockname()[1]}/x.yaml"

    def _answer(self, content: bytes, pause_s: float) -> None:
        with suppress(OSError):
            connection, _ = self._server.accept()
            with connection:
                connection.recv(65_536)
                for byte in content:
                    if self._stop.wait(pause_s):
                        return
                    connection.sendall(bytes([byte]))
                    self.sent += 1

    def close(self) -> None:
        """Send nothing more."""
        self._stop.set()
        self._server.close()


@pytest.fixture
def drip():
    server = Drip()
    yield server
    server.close()


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 " + b"O" * 9_999,
        b"HTTP/1.1 200 OK\r\nX-Filler: " + b"x" * 9_999,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 9_999,
    ],
)
def test_a_server_that_drips_is_left_in_time(drip: Drip, content: bytes) -> None:
    """Each byte comes within the limit on silence; the whole would take minutes."""
    with pytest.raises(ConfigError, match=r"too slow; its answer was not whole within 0.4 s|no answer within 0.2 s"):
        fetch(drip.serve(content, 0.02), 100_000, timeout_s=0.2)
    assert drip.sent < len(content) / 10


def test_a_server_does_not_write_to_the_terminal(drip: Drip) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(drip.serve(b"HTTP/1.1 404 \x1b[2J\x1b]0;mine\x07gone\r\n\r\n", 0.0), 100, timeout_s=60.0)
    assert "404" in str(caught.value) and str(caught.value).isprintable()


def test_servers_that_are_not_there_or_say_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError, match=r"no answer within 0.2 s"):
            fetch(f"http://127.0.0.1:{port}/x.yaml", 100, timeout_s=0.2)
    for url, words in {
        f"http://127.0.0.1:{port}/x.yaml": "refused",
        "http://127.0.0.1:port/x.yaml": "cannot fetch",
        "http://": "cannot fetch",
        "http://[": "cannot fetch",
    }.items():
        with pytest.raises(ConfigError, match=words):
            fetch(url, 100)


def refused(text: str) -> ConfigError | None:
    """What a fetched file is refused for."""
    return refused_settings(*load_text(text, "http://host/x.yaml"))


def refused_settings(experiments, source: Source) -> ConfigError | None:
    """The same of a file that was read."""
    try:
        for spec in make_specs(experiments, source):
            refuse_code(spec)
    except ConfigError as error:
        return error
    return None


OWN, CHESS, STOCK = "lmgame/Sokoban-v0", "lmgame/Chess-v0", "CartPole-v1"
MUTATIONS = {"pbt": "hyperparam_mutations", "pb2": "hyperparam_bounds"}


def of(game: str | None, settings: str) -> str:
    """The text of a file with these settings of an experiment."""
    env = "" if game is None else f"  env: {game}\n"
    return f"a:\n  run: {'PPO' if game == STOCK else 'LMGamePPO'}\n{env}  {settings}\n"


OFFLOADED = "deepspeed.zero_optimization.offload_optimizer"
NOT_TAKEN = {
    None: {"games: [lmgame/Sokoban-v0, 'guess:Game']": "games[1].env"},
    OWN: {
        "evaluation_config: {games: [{env: 'guess:Game'}]}": "evaluation_config.games[0].env",
        "env_config: {seed: {eval: '1 + 1'}}": "env_config.seed.eval",
        "lr: {sample_from: 'os:getpid'}": "lr.sample_from",
        "lr: {points: [[0, {sample_from: 'os:getpid'}]]}": "lr.points[0][1].sample_from",
        "lr: {choice: [{points: [[0, 1]]}, 'os:getpid']}": "lr",
        "language_model: {trust_remote_code: true}": "language_model.trust_remote_code",
        "language_model: {trust_remote_code: {choice: [false, true]}}": "language_model.trust_remote_code",
        "language_model: {model: /data/model}": "language_model.model",
        "language_model: {tokenizer: ../model}": "language_model.tokenizer",
        "language_model: {chat_template: /etc/x.txt}": "language_model.chat_template",
        "inference: {engine: 'mine:Engine'}": "inference.engine",
        "inference: {engine_kwargs: {worker_cls: x}}": "inference.engine_kwargs",
        "inference: {engine_kwargs: {kv_transfer_config: {kv_connector_module_path: x}}}": "inference.engine_kwargs",
        "inference: {engine_kwargs: {trust_remote_code: true}}": "inference.engine_kwargs",
        "token_ppo: {advantage_estimator: 'os:system'}": "token_ppo.advantage_estimator.type",
        "token_ppo: {objective: 'mine:Objective'}": "token_ppo.objective",
        "warm_start: {expert: 'mine:Player'}": "warm_start.expert",
        "warm_start: {data: /etc/passwd}": "warm_start.data",
        "warm_start: {data: 'hf:who/what'}": "warm_start.data",
        "warm_start: {data: ['data:lmrl:chess', /etc/passwd]}": "warm_start.data",
        "warm_start: {data: 'data:../../etc'}": "warm_start.data",
        "games: [{env: lmgame/Sokoban-v0, name: ../x}]": "games[0].name",
        "games: [{env: lmgame/Debate-v0, env_config: {judge: 'openai:m@http://h/v1#KEY'}}]": (
            "games[0].env_config.judge"
        ),
        "evaluation_config: {games: ['agentgym:maze']}": "evaluation_config.games[0].env",
        "evaluation_config: {best: /etc/passwd}": "evaluation_config.best",
        "policies: {a: {player: 'mine:Player'}}": "policies.a.player",
        "policies: {a: {language_model: {trust_remote_code: true}}}": "policies.a.language_model.trust_remote_code",
        "policies: {../../a: {}}": "policies",
        "policy_mapping_fn: 'mine:f'": "policy_mapping_fn",
        "seat_mapping_spec: 'mine:f'": "seat_mapping_spec",
        "deepspeed: {tensorboard: {enabled: true, output_path: /tmp}}": "deepspeed.tensorboard",
        "deepspeed: {zero_optimization: {offload_optimizer: {device: nvme, nvme_path: /x}}}": f"{OFFLOADED}.device",
        'language_model: {system_prompt: "\\e]0;title\\a"}': "language_model.system_prompt",
    },
    CHESS: {
        "env_config: {opponent: stockfish, engine_path: /tmp/x}": "env_config.engine_path",
        "env_config: {engine_path: {grid_search: [stockfish, /tmp/x]}}": "env_config.engine_path",
        "env_config: {grid_search: [{}, {engine_path: /tmp/x}]}": "env_config.engine_path",
    },
    "lmgame/TwentyQuestions-v0": {
        "env_config: {oracle: 'os:system'}": "env_config.oracle",
        "env_config: {oracle: 'openai:m@http://h/v1#AWS_SECRET_ACCESS_KEY'}": "env_config.oracle",
        "env_config: {oracle: 'hf:who/what'}": "env_config.oracle",
    },
    "lmgame/Debate-v0": {
        "env_config: {judge: 'openai:m@http://h/v1#AWS_SECRET_ACCESS_KEY'}": "env_config.judge",
        "env_config: {judge: {choice: [rule, 'hf:who/what']}}": "env_config.judge",
    },
    "lmgame/ToolUse-v0": {
        "env_config: {functions: ['os:system']}": "env_config.functions",
        "env_config: {mcp: [sh, -c, id]}": "env_config.mcp",
        "env_config: {mcp: [{choice: [id]}]}": "env_config.mcp",
        "env_config: {data: /etc/passwd}": "env_config.data",
    },
    "lmgame/DeepSearch-v0": {
        "env_config: {retriever: 'http://10.0.0.1'}": "env_config.retriever",
        "env_config: {retriever: 'mine:Retriever'}": "env_config.retriever",
        "env_config: {encoder: who/what}": "env_config.encoder",
        "env_config: {corpus: /etc/passwd}": "env_config.corpus",
        "env_config: {index: /etc/passwd}": "env_config.index",
        "env_config: {ids: /etc/passwd}": "env_config.ids",
        "env_config: {data: 'hf:who/what'}": "env_config.data",
    },
    "lmgame/MathProblems-v0": {"env_config: {data: /etc/passwd}": "env_config.data"},
    "lmgame/BIRD-v0": {"env_config: {data: 'data:bird', db_root: /home}": "env_config.db_root"},
    "lmgame/WebShop-v0": {"env_config: {data: 'data:webshop', goals_data: /etc/passwd}": "env_config.goals_data"},
    "lmgame/TextNav-v0": {"env_config: {files: /home}": "env_config.files"},
    "lmgame/MiniWoB-v0": {"env_config: {tasks: 'http://10.0.0.1'}": "env_config.tasks"},
    "agentgym:textcraft": {"env_config: {url: 'http://10.0.0.1'}": "env"},
    "lmgame/WebArena-v0": {"env_config: {storage_state: /home}": "env"},
    "lmgame/GSM8K-v0": {"env_config: {data: /etc/passwd}": "env_config.data"},
    "lmgame/CliffWalking-v0": {"env_config: {env_id: 'this:E-v0'}": "env_config.env_id"},
    STOCK: {
        "env_config: {xml_file: /tmp/x.xml}": "env_config.xml_file",
        "extra_python_environs_for_worker: {LD_PRELOAD: /tmp/x.so}": "extra_python_environs_for_worker",
        "callbacks_class: mine.Callbacks": "callbacks_class",
        "evaluation_config: {env: mine.Env, env_config: {a: 1}}": "evaluation_config.env",
        "model: {custom_model: mine}": "model.custom_model",
        "input_: /tmp/x": "input_",
        "output: /tmp/x": "output",
    },
}
"""Game -> settings below ``config`` -> the key of what could run code or read files."""


OF_EXPERIMENTS = {
    "callbacks: [{type: 'subprocess:Popen', args: id}]": "callbacks",
    "callbacks: [{type: mlflow, tracking_uri: 'http://host'}]": "callbacks",
    "report: {type: 'my_package.reports:run'}": "report",
    "report: {type: 'rllib_lmgame.evaluation.learning_report:success_table', milestones: {}}": "report",
    "report: {type: learning, split: '/etc/passwd'}": "report",
    "restore: s3://bucket/checkpoint": "restore",
    "storage_path: /home/somebody/.ssh": "storage_path",
    "local_dir: /home/somebody/.ssh": "storage_path",
    "export_formats: [model]": "export_formats",
    "scheduler: {type: asha, time_attr: t, x: 'os:system'}": "scheduler",
    "scheduler: {type: pbt_replay, policy_file: /etc/passwd}": "scheduler",
    "scheduler: {type: resource_changing, increase_by: {GPU: 1}}": "scheduler",
}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        *((of(OWN, settings), key) for settings, key in OF_EXPERIMENTS.items()),
        *(
            (of(game, f"config: {{{settings}}}"), f"config.{key}")
            for game, rows in NOT_TAKEN.items()
            for settings, key in rows.items()
        ),
        ("a:\n  run: subprocess:Popen\n", "run"),
        ("a:\n  run: PPO\n  env: subprocess.Popen\n", "config.env"),
        ("a:\n  run: PPO\n  env: 'this:ns/Env-v0'\n", "config.env"),
        ("a:\n  run: LMGamePPO\n  env: guess:Game\n", "config.env"),
    ],
)
def test_what_could_run_code_or_read_files_is_not_taken_from_the_network(text: str, key: str) -> None:
    error = refused(text)
    assert error is not None and error.path == key
    assert error.message.endswith("is not taken from the network; download the file, read it, and run it from disk")
    assert error.source is not None and error.source.startswith("http://host/x.yaml:")


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("lr: {points: [[0, 1]], by: {choice: [env_steps, '../x y']}}", "lr.by"),
        ("lr: {points: {choice: [[[0, 1]], 'os:getpid']}}", "lr.points"),
        ("token_ppo: {importance: {band: {low: 0.5, high: {choice: [2, x]}}}}", "token_ppo.importance.band.high"),
        ("env_config: {dim_room: [6, {grid_search: [6, 'os:getpid']}]}", "env_config.dim_room[1]"),
    ],
)
def test_every_alternative_of_a_search_space_is_looked_at(option: str, key: str) -> None:
    error = refused(of(OWN, f"config: {{{option}}}"))
    assert error is not None and error.path == f"config.{key}"


@pytest.mark.parametrize(
    ("game", "kind", "values", "key"),
    [
        (OWN, "pbt", "language_model: {model: [a, /data/x]}", "language_model.model"),
        (CHESS, "pbt", "env_config: {engine_path: [/tmp/x]}", "env_config.engine_path"),
        (OWN, "pb2", "inference: {engine_kwargs: [{}, {trust_remote_code: 1}]}", "inference.engine_kwargs"),
    ],
)
def test_a_scheduler_does_not_write_it_into_a_configuration(game: str, kind: str, values: str, key: str) -> None:
    error = refused(of(game, f"scheduler: {{type: {kind}, {MUTATIONS[kind]}: {{{values}}}}}"))
    assert error is not None and error.path == f"scheduler.{MUTATIONS[kind]}.{key}"
    assert "is not taken from the network" in error.message


@pytest.mark.parametrize(
    "path", sorted(Path(rllib_lmgame.__file__).parent.glob("tuned_examples/*.yaml")), ids=lambda path: path.stem
)
def test_every_tuned_example_could_be_fetched(path: Path) -> None:
    """But those that talk to servers, or run a program by its name: a stranger does not say which."""
    text = path.read_text()
    asks = any(words in text for words in ("agentgym-ids:", 'retriever: "http', "env: agent:"))
    assert (refused(text) is not None) == asks


PLAIN = {
    OWN: [
        "config: {language_model: {trust_remote_code: false, chat_template: '{{ messages }}'}}",
        "config: {language_model: {chat_template_kwargs: {enable_thinking: no}}}",
        "config: {env_config: {symbols: '0123456', moves: [a, b, c, d], dim_room: [6, 6]}}",
        "config: {lr: {loguniform: [1e-6, 1e-4]}}",
        "config: {warm_start: {data: 'data:lmrl:chess', format: log, min_return: {lmgame/Chess-v0: 0.5}}}",
        "config: {games: [{env: lmgame/Sokoban-v0, name: easy, language_model: {system_prompt: 'Hi.', think: 'off'}}]}",
        "report: exploitability",
        "report: {type: 'rllib_lmgame.evaluation.learning_report:learning_report', episodes: 8, split: test}",
        "config: {policies: {player: {}, other: {player: random}}, policy_mapping_fn: {X: player, '*': other}}",
        "scheduler: {type: pbt, log_config: true, hyperparam_mutations: {lr: [1e-6, 1e-5]}}",
        "scheduler: {type: pbt, perturbation_factors: [2, 3], hyperparam_mutations: {inference: {top_p: [0.9, 1]}}}",
        "scheduler: {type: pbt, hyperparam_mutations: {lr: {uniform: [0, 1]}, env_config: {max_turns: [5, 10]}}}",
        "scheduler: {type: pb2, hyperparam_bounds: {token_ppo: {kl: {coeff_range: [1, 9]}}, lr: [1e-6, 1e-4]}}",
        "config: {language_model: {max_tokens_per_turn: {randint: [8, 17]}}}",
        "config: {inference: {num_threads: auto}, token_ppo: {num_threads: {grid_search: [auto, 2]}}}",
        "config: {gamma: {points: {grid_search: [[[0, 1]], [[0, 0.9], [9, 1]]]}}}",
        "config: {token_ppo: {policy_loss: {low: {points: [[0, 0.1]]}, high: {points: [[0, 0.2]]}}}}",
        "config: {gamma: {points: [[0, 1], [{randint: [5, 9]}, {uniform: [0.8, 1]}]]}}",
        "config: {env_config: {max_turns: {by: env_steps, points: [[0, 5]], type: step}}}",
        "config: {games: [{env: lmgame/Sokoban-v0, weight: {by: env_steps, points: [[0, 5]]}}]}",
        "config: {lr: {choice: [{points: [[0, 1]]}, {by: env_steps, points: [[0, 1]]}]}}",
        "config: {token_ppo: {importance: {band: {low: 0.5, high: {grid_search: [2, 5]}}}}}",
        "config: {token_ppo: {kl: {schedule: [[0, {choice: [0.1, 0.2]}], [9, {uniform: [0, 1]}]]}}}",
        "config: {env_config: {dim_room: [6, {grid_search: [6, 7]}]}}",
    ],
    CHESS: ["config: {env_config: {opponent: {choice: [random, alpha_beta]}, engine_path: stockfish}}"],
    "lmgame/GSM8K-v0": ["config: {env_config: {data: {grid_search: ['data:gsm8k', 'data:gsm8k:test']}}}"],
    "lmgame/DeepSearch-v0": ["config: {env_config: {data: 'data:searchqa', corpus: 'data:wiki18:corpus'}}"],
    STOCK: [
        "config: {model: {fcnet_hiddens: [8], fcnet_activation: tanh}, grad_clip_by: norm, env_config: {a: 1}}",
        "config: {env_config: {a: 1}, evaluation_config: {explore: false, env_config: {a: 2}}}",
    ],
}


@pytest.mark.parametrize("text", [of(game, settings) for game, rows in PLAIN.items() for settings in rows])
def test_plain_data_is_taken(text: str) -> None:
    assert refused(text) is None


def test_every_schedule_is_read_once_for_each_of_its_own_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of them for each alternative of one: a small file would keep the check busy for minutes."""
    read: list[str] = []

    def noted(value, path: str) -> ScheduleOptions:
        read.append(path)
        return read_schedule(value, path)

    def refused_config(config) -> ConfigError | None:
        experiment = {"run": "LMGamePPO", "env": "lmgame/Sokoban-v0", "config": config}
        return refused_settings({"a": experiment}, Source("x"))

    monkeypatch.setattr("rllib_lmgame.settings.trust.read_schedule", noted)
    games = [{"env": "lmgame/Sokoban-v0", "weight": {"points": [[0, 1]]}} for _ in range(400)]
    searched = {"points": {"grid_search": [[[0, 1]]] * 400}}
    assert refused_config({"games": games, "gamma": searched}) is None
    assert len(read) == 800
    error = refused_config({"gamma": {"points": {"grid_search": [[[0, 1]]] * 1001}}})
    assert error is not None and "more than 1,000 alternatives" in str(error) and error.path == "config.gamma"
    read.clear()
    long = [[float(at), 1e-6] for at in range(249)]
    error = refused_config({"lr": {"points": [[0, {"grid_search": [1e-6] * 1000}], *long[1:]]}})
    assert error is not None and "more than 20,000 values" in str(error) and not read


def test_what_holds_itself_is_not_taken() -> None:
    """YAML's own circles are refused when a file is read; a program may hand over one."""
    circle = {"a": [1]}
    circle["a"].append(circle)
    names = ["a"]
    names.append(names)
    gate = Gate("the network", "read it")
    wrong = {
        "config.env_config.size": {"env": "CartPole-v1", "env_config": {"size": circle}},
        "config.grad_clip": {"grad_clip": circle},
        "config.policy_mapping_fn": {"policy_mapping_fn": names},
        "config.lr": {"lr": {"points": circle}},
    }
    for path, config in wrong.items():
        with pytest.raises(ConfigError) as caught:
            check_config(config, gate)
        assert caught.value.path.startswith(path)


def limited_options():
    """``(game, path, never)`` of each option that a stranger may set to some values of its type, or never."""
    groups: list[tuple[str, tuple[str, ...], type]] = [
        ("lmgame/Sokoban-v0", (name,), group) for name, group in SECTIONS.items()
    ]
    groups += [("lmgame/Sokoban-v0", ("policies", "player"), PlayerOptions)]
    groups += [("lmgame/Sokoban-v0", ("policies", "player", "language_model"), LanguageModelOptions)]
    groups += [
        (spec.game_id, ("env_config",), group) for spec in own_games().values() if (group := options_of(spec.game_id))
    ]
    for game, sections, group in groups:
        for key, each in declared(group).items():
            verdict = each.says.get("stranger")
            if verdict is False or callable(verdict):
                yield game, (*sections, key), verdict is False


NUMBERED = {
    ("env_config", "level"),
    ("env_config", "task"),
    ("warm_start", "min_return"),
    ("supervised", "min_return"),
    ("dpo", "chosen_min"),
    ("agentevol", "min_return"),
    ("language_model", "demonstrations"),
    ("policies", "player", "language_model"),
    ("policies", "player", "language_model", "demonstrations"),
}
"""Registered things that have numbers too, and what may be a number or a file; and a section, whose options are gone
through themselves.
"""


@pytest.mark.parametrize(
    "space",
    [
        [1],
        {"randint": [1, 2]},
        {"choice": [1]},
        {"choice": [True]},
        {"choice": [1.0]},
        {"uniform": [0, 1]},
        ["true"],
        {"grid_search": ["yes"]},
    ],
)
def test_neither_search_space_nor_mutation_sets_what_a_stranger_may_not(space) -> None:
    texts = "true" in space or "grid_search" in space
    options = [option for option in limited_options() if option[2] or not (texts or option[1] in NUMBERED)]
    assert {("inference", "engine_kwargs"), ("language_model", "trust_remote_code")} <= {path for _, path, _ in options}
    for game, path, _ in options:
        for value in (space, {"trust_remote_code": space}) if path[-1] == "engine_kwargs" else (space,):
            values = functools.reduce(lambda inner, key: {key: inner}, reversed(path), value)
            mutations = [{"type": kind, "metric": "m", "mode": "max", way: values} for kind, way in MUTATIONS.items()]
            for settings in ({"config": values}, *({"scheduler": scheduler} for scheduler in mutations)):
                assert (
                    refused_settings({"a": {"run": "LMGamePPO", "env": game, **settings}}, Source("x")) is not None
                ), settings


def test_only_what_is_declared_is_taken() -> None:
    """A new option of text is refused until somebody declares that a stranger may set it."""
    assert not takes(option(None, "A file.").json_schema_extra, "x")
    assert not takes(option({}, "Arguments.").json_schema_extra, {"a": "x"})


def test_what_the_user_sets_is_the_users(serve) -> None:
    address = serve({"/x.yaml": (200, {}, FILE.encode())})
    (spec,) = read_experiments(address + "/x.yaml", ["storage_path=/tmp/mine", "config.callbacks_class=mine.Callbacks"])
    assert spec.options.storage_path == "/tmp/mine"
