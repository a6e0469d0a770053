"""The command line without a cluster: help, errors, exit codes, what is imported."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

import pytest

from rllib_lmgame.cli import main
from rllib_lmgame.cli.example import examples
from rllib_lmgame.cli.main import COMMANDS, make_parser

GAME = (
    "a:\n  run: LMGamePPO\n  env: lmgame/Sokoban-v0\n  stop: {rl_iteration: 1}\n  config:\n    inference:\n      %s\n"
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(GAME % "temperature: 0.5")
    return path


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("train", "evaluate", "example", "games", "play"):
        assert command in text
    assert main(["--version"]) == 0
    assert "rllib-lmgame 0.1.0 (ray 2." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tran"], "did you mean `rllib train`?"),
        (["train"], "name a file"),
        (["train", "file", "/no/such.yaml"], "no directory"),
        (["train", "file", "a.yaml", "b.yaml"], "got a.yaml, b.yaml"),
        (["train", "file", "frozenlake-tiny"], "`rllib example run frozenlake-tiny`"),
        (["games", "check", "./guess.py"], "guess:CLASS"),
        (["train", "file", "a.yaml", "--algo", "PPO"], "--set run="),
        (["train", "--algo", "PPO", "--config", "3"], "--config"),
        (["evaluate", "STOCK", "random"], "RLlib's own are evaluated by Algorithm.from_checkpoint"),
        (["example", "list", "-f", "no such thing"], "no example"),
        (["doctor", "more", "--lerning"], "unrecognized arguments: more --lerning; did you mean --learning?"),
        (["compare", "x", "--title", "t"], "--title goes with --out"),
        (["--dry-run", "train", "file", "a.yaml"], "unrecognized arguments: --dry-run in front of `train`; see"),
        (["doctor", "--learning", "--checks", "sdpa"], "error: --checks goes with --gpu; see"),
    ],
)
def test_wrong_usage_is_explained_in_one_line(arguments, words, capsys, tmp_path):
    (tmp_path / "rllib_checkpoint.json").write_text("{}")
    assert main([argument.replace("STOCK", str(tmp_path)) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("error: ") and error.count("\n") == 1


def test_errors_name_file_line_and_key(file, capsys):
    file.write_text(GAME % "temperatur: 0.5")
    assert main(["train", "file", str(file), "--dry-run"]) == 2
    error = f"error: {file}:7: config.inference.temperatur: unknown key; did you mean 'temperature'?\n"
    assert capsys.readouterr().err == error


def test_the_command_itself_has_the_variables_of_the_file(file, monkeypatch, capsys):
    """Else the hub would refuse a gated model to its checks."""
    monkeypatch.setenv("LMGAME_OF_A_TEST", "before")
    file.write_text(GAME % "temperatur: 0.5" + "  env_vars: {LMGAME_OF_A_TEST: 7}\n")
    assert main(["train", "file", str(file)]) == 2
    assert os.environ["LMGAME_OF_A_TEST"] == "7"
    file.write_text(GAME % "temperatur: 0.5" + "  env_vars: {A=B: x, '': y}\n")
    assert main(["train", "file", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.count("env_vars: no environment holds") == 2 and "did you mean 'temperature'" in error


def test_all_wrong_keys_of_a_file_are_named_at_once(file, capsys):
    text = GAME % "temperatur: 0.5" + "    evaluation_config: {foo: 3}\n"
    text += "    env_config: {splt: test}\n    language_model: {tiny: {vocab: 300}}\n  search: {sed: 1}\n"
    file.write_text(text.replace("stop:", "stopp:") + "b: {run: LMGamePPO, stop: {rl_iteratoin: 1}}\n")
    assert main(["train", "file", str(file), "--dry-run"]) == 2
    places = [line.split(": ")[:2] for line in capsys.readouterr().err.removeprefix("error: ").splitlines()]
    wrong = [(4, "stopp"), (7, "config.inference.temperatur"), (8, "config.evaluation_config.foo"), (11, "search.sed")]
    wrong += [(9, "config.env_config.splt"), (10, "config.language_model.tiny.vocab"), (12, "stop.rl_iteratoin")]
    assert sorted(map(tuple, places)) == sorted((f"{file}:{n}", key) for n, key in wrong)


@pytest.mark.parametrize("name", ["n" * 300, "a/b", "a\udcff"])
def test_the_name_of_an_experiment_is_looked_at_where_a_flag_gives_it(name, file, capsys):
    assert main(["train", "file", str(file), "-n", name, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --experiment-name: ") and "becomes a directory" in said and said.count("\n") == 1


def test_debug_shows_the_stack(file):
    from rllib_lmgame.base.errors import ConfigError

    file.write_text(GAME % "temperatur: 0.5")
    with pytest.raises(ConfigError):
        main(["train", "file", str(file), "--dry-run", "--debug"])


HEAVY = ("ray", "torch", "vllm", "deepspeed", "transformers")


def imported_by(commands: list[list[str]], of: tuple[str, ...] = HEAVY) -> tuple[list[int], set[str]]:
    """The statuses of commands in one fresh process, and which of some packages they import."""
    script = (
        f"import sys; from rllib_lmgame.cli import main; codes = [main(words) for words in {commands!r}]; "
        f"print('IMPORTED', codes, *[m for m in {of} if m in sys.modules], sep=';')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    codes, *found = done.stdout.split("IMPORTED;")[1].strip().split(";")
    return json.loads(codes), set(found)


def test_help_and_first_errors_import_nothing_heavy(file):
    light = ("numpy", "yaml", "gymnasium", "rllib_lmgame.envs", "rllib_lmgame.config", "rllib_lmgame.policies")
    assert imported_by([["--help"]], HEAVY + light) == ([0], set())
    wrong, right = file.with_name("wrong.yaml"), ["train", "file", str(file), "--dry-run"]
    wrong.write_text(GAME % "temperatur: 0.5")
    stock = ["--set", "run=PPO", "--set", "env=CartPole-v1", "--set", "stpo=1"]
    of_file = [["train", "--help"], bad := ["train", "file", str(wrong)], [*bad, "--set", "run=null"], bad + stock]
    assert imported_by(of_file, (*HEAVY, "numpy", "gymnasium", "rllib_lmgame.envs")) == ([0, 2, 2, 2], set())
    lists = [["example", "list"], ["games", "list"], [*right, "--set", "config.max_tokens_per_turn=1"]]
    assert imported_by(lists) == ([0, 0, 2], set())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_a_command_with_one_line(number, monkeypatch, capsys):
    closed: list[str] = []

    def evaluate(arguments: list[str], started: float) -> int:
        try:
            os.kill(os.getpid(), number)
            return 0
        finally:
            closed.append("Ray")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys.modules["rllib_lmgame.cli.main"], "_dispatch", evaluate)
    # What runs in a shell's background ignores Ctrl-C.
    of_ctrl_c = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["evaluate", "x"]) == 128 + number
    finally:
        signal.signal(signal.SIGINT, of_ctrl_c)
    assert capsys.readouterr().err == "interrupted\n" and closed == ["Ray"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_file_and_flags_may_stand_anywhere(file, capsys):
    assert main(["train", "--dry-run", "file", "--set", "config.gamma=0.5", str(file)]) == 0
    assert "temperature: 0.5" in capsys.readouterr().out


def test_a_dry_run_names_the_directory_that_the_run_will_write_to(file, tmp_path, capsys):
    arguments = f"train file {file} --dry-run --storage-path {tmp_path}/r --experiment-name mine".split()
    for name in ("mine", "mine-2"):
        assert main(arguments) == 0
        assert f"results: {tmp_path / 'r' / name}\n" in capsys.readouterr().out
        assert not (tmp_path / "r" / name).exists()
        (tmp_path / "r" / name).mkdir(parents=True)
        (tmp_path / "r" / name / "experiment_state-2026.json").write_text("{}")
    assert main([*arguments, "--resume"]) == 0
    told = capsys.readouterr()
    assert f"results: {tmp_path / 'r' / 'mine-2'}\n" in told.out and "going on with the last one" in told.err


def test_a_dry_run_refuses_to_resume_what_a_run_refuses(file, tmp_path, capsys):
    arguments = f"train file {file} --dry-run --resume --storage-path {tmp_path}/r -n x".split()
    assert main(arguments) == 2
    assert "nothing to resume" in capsys.readouterr().err
    directory = tmp_path / "r" / "x"
    directory.mkdir(parents=True)
    (directory / "experiment_state-2026.json").write_text("{}")
    (directory / "settings.json").write_text(json.dumps({"num_samples": 7, "config": {}}))
    assert main(arguments) == 2
    assert "but the experiment was started" in capsys.readouterr().err


def test_flags_win_over_the_file(file, tmp_path, capsys):
    arguments = f"train file {file} --dry-run --storage-path {tmp_path}/r".split()
    arguments += ["--checkpoint-freq", "3", "--no-checkpoint-at-end", "--num-samples", "3", "-n", "other"]
    arguments += ["--set", "config.lr=5e-5", "--config", '{"gamma": 0.5}', "--stop", '{"rl_iteration": 7}']
    arguments += ["--set", "config.language_model={context_length: 40000, tiny: {max_position_embeddings: 40000}}"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    for words in (
        "# other: LMGamePPO, 3 trials",
        "rl_iteration: 7",
        "checkpoint_frequency: 3",
        "checkpoint_at_end: false",
        "lr: 5.0e-05",
        "gamma: 0.5",
        str(tmp_path / "r" / "other"),
    ):
        assert words in told.out
    assert "warning: player: one GPU computes rows of up to 40,000 tokens" in told.err


@pytest.mark.parametrize(
    ("flags", "place"),
    [
        (["--config", "{inference: {temperature: -1}}"], '--config config.inference={"temperature": -1}'),
        (["-c", "{gamma: 0.5}", "--set", "config.inference.temperature=-1"], "--set config.inference.temperature=-1"),
        (["--config", "{gamma: 0.5}"], "FILE:7"),
    ],
)
def test_errors_name_the_command_line_where_the_value_stands_there(flags, place, file, capsys):
    file.write_text(GAME % "temperature: -2")
    assert main(["train", "file", str(file), "--dry-run", *flags]) == 2
    place = place.replace("FILE", str(file))
    assert capsys.readouterr().err.startswith(f"error: {place}: config.inference.temperature: ")


def test_one_of_several_experiments_can_be_chosen(tmp_path, capsys):
    path = tmp_path / "two.yaml"
    path.write_text("".join(f"{n}: {{run: PPO, env: CartPole-v1, stop: {{training_iteration: 1}}}}\n" for n in "ab"))
    assert main(["train", "file", str(path), "--dry-run", "-n", "b"]) == 0
    text = capsys.readouterr().out
    assert "# b: PPO" in text and "# a: PPO" not in text
    assert main(["train", "file", str(path), "--dry-run", "-n", "c"]) == 2


# -- examples ---------------------------------------------------------------------------------------------------


def test_examples_are_listed_with_descriptions(capsys):
    assert main(["example", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    kinds = ["On two CPU cores", "On one GPU", "On four GPUs", "On eight GPUs", "On 32 GPUs"]
    assert [line for line in lines if line.startswith("On ")] == kinds
    rows = [line for line in lines if line and line not in kinds]
    assert sorted(line.split()[0] for line in rows) == sorted(examples())
    assert all(len(line.split(maxsplit=1)) == 2 for line in rows)
    at = {kind: lines.index(kind) for kind in kinds}
    gpus = [n for n, line in enumerate(lines) if "-1gpu" in line.split(" ")[0] or line.startswith("grl-quick ")]
    assert len(gpus) > 1 and all(at["On one GPU"] < number < at["On four GPUs"] for number in gpus)
    assert not any("gpu" in line.split(" ")[0] for line in lines[: at["On one GPU"]])


def test_an_example_runs_with_flags(capsys):
    assert main(["example", "run", "cartpole-ppo", "--dry-run", "--set", "config.gamma=0.7"]) == 0
    assert "gamma: 0.7" in capsys.readouterr().out


@pytest.mark.parametrize("expert", ["random", "solver"])
def test_a_program_has_no_expert(expert, capsys):
    assert main(["example", "run", "agent-trail-tiny", "--dry-run", "--set", f"config.warm_start.expert={expert}"]) == 2
    assert f" is a program, which `{expert}` cannot answer; set warm_start.data" in capsys.readouterr().err


def command(words: str, **environment: str) -> tuple[int, str, str]:
    """Run ``rllib`` in a shell; returns exit status, standard output and error."""
    program = f"{sys.executable} -c 'from rllib_lmgame.cli import main; raise SystemExit(main())' {words}"
    done = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr


def test_output_that_cannot_be_written_is_named() -> None:
    status, _, said = command("games list > /dev/full")
    assert (status, said) == (1, "error: standard output cannot be written: No space left on device\n")


CHECKED_LATER = {
    *("--port", "--topk"),
    *("--num-samples", "--checkpoint-freq"),  # As keys of a file.
}


def test_numbers_of_all_commands_have_limits(capsys):
    seen = set()
    for command in COMMANDS:
        parsers = [make_parser(command)]
        for action in (action for parser in parsers for action in parser._actions):
            if isinstance(action, argparse._SubParsersAction):
                parsers += [action.choices[command]] if command in action.choices else action.choices.values()
            elif action.type is int and action.choices is None:
                assert {*action.option_strings} & CHECKED_LATER, (command, action.option_strings)
            elif callable(action.type) and action.type.__qualname__.startswith("whole"):
                with pytest.raises(argparse.ArgumentTypeError, match="must be at most"):
                    action.type("9" * 400)
                seen.add((command, action.dest))
    assert {("collect", "episodes"), ("evaluate", "samples"), ("tournament", "games_each")} <= seen and len(seen) >= 15
    for arguments in (
        ["collect", "g", "--out", "x", "--episodes"],
        ["evaluate", "random", "--games", "g", "--samples"],
    ):
        assert main([*arguments, "9" * 30]) == 2
        assert f"{arguments[-1]}: must be at most 1,000,000" in capsys.readouterr().err
    both = ["--games", "lmgame/Maze-v0", "--episodes", "1000000", "--samples", "1000000"]
    assert main(["evaluate", "random", *both]) == 2
    assert "--samples: 1,000,000 deals" in capsys.readouterr().err
