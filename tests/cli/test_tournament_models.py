"""Tournaments of language models: checkpoints, Hugging Face directories, endpoints, with tokenizers of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rllib_lmgame.cli import main

TIC_TAC_TOE = "lmgame/TicTacToe-v0"
LEGAL = "{text_rollouts: {constrained_decoding: true}, language_model: {max_tokens_per_turn: 16}}"
SELF_PLAY = {"env": TIC_TAC_TOE, "env_config": {}, "text_rollouts": {"constrained_decoding": True}}


@pytest.fixture(scope="session")
def other_model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose tokenizer has other tokens than that of ``tiny_model_dir``."""
    from rllib_lmgame.policies.model.tiny import build_tiny_model

    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 1, "intermediate_size": 32, "vocab_size": 280, "seed": 9}
    return str(build_tiny_model(tmp_path_factory.mktemp("other"), ["a mouse moves", "the middle"], shape))


def seats(out: Path):
    """Assignments and trajectories of the games, in their order."""
    records = [json.loads(line) for line in (out / "games.jsonl").read_text().splitlines()]
    return sorted(({**record, "infos": {}} for record in records), key=lambda record: str(record["episode_id"]))


def test_models_with_different_tokenizers_and_a_checkpoint_play(
    tmp_path, tiny_model_dir, other_model_dir, checkpoint, capsys
) -> None:
    players = [f"a=hf:{tiny_model_dir}", f"b=hf:{other_model_dir}", f"saved={Path(checkpoint(**SELF_PLAY)).parent}"]
    command = ["tournament", TIC_TAC_TOE, "--players", *players, "--games", "2", "--config", LEGAL]
    outs = [tmp_path / name for name in ("one", "again")]
    for out in outs:
        assert main([*command, "--parallel", "1", "--out", str(out)]) == 0
    assert "6 of 6 games played" in capsys.readouterr().out
    assert seats(outs[0]) == seats(outs[1])  # Bit for bit, tokens and log-probabilities too.
    for record in seats(outs[0]):
        assert all(seat["turns"] and seat["module_id"] in ("a", "b", "saved") for seat in record["trajectories"])
        assert all(line["player"] == "language_model" and line["member"] for line in record["assignments"].values())
    assert main([*command, "--temperature", "0", "--out", str(outs[0])]) == 2
    assert "players.a.temperature was None, now it is 0.0" in capsys.readouterr().err


def test_games_of_a_model_are_written_in_one_batch(tiny_model_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from rllib_lmgame.inference.engines.transformers_engine import TransformersCore

    rows: list[int] = []
    forward = TransformersCore._forward

    def counted(core, batch, *args):
        rows.append(len(batch))
        return forward(core, batch, *args)

    monkeypatch.setattr(TransformersCore, "_forward", counted)
    players = [f"a=hf:{tiny_model_dir}", "random"]
    command = ["tournament", TIC_TAC_TOE, "--players", *players, "--games", "8", "--parallel", "8"]
    assert main([*command, "--config", LEGAL]) == 0
    assert max(rows) >= 6


def test_another_checkpoint_in_the_same_place_is_another_player(tmp_path, checkpoint, capsys) -> None:
    place = Path(checkpoint(**SELF_PLAY))
    command = ["tournament", TIC_TAC_TOE, "--players", f"saved={place.parent}", "random", "--games", "2"]
    assert main([*command, "--out", str(tmp_path / "cup")]) == 0
    newer = place.with_name("checkpoint_000001")
    shutil.copytree(place, newer)
    (newer / "hf" / "NOTE.md").write_text("a later one")
    from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest

    write_manifest(newer)
    capsys.readouterr()
    assert main([*command, "--out", str(tmp_path / "cup")]) == 2
    assert "players.saved.checkpoint was" in capsys.readouterr().err


def test_another_model_in_the_same_directory_is_another_player(tmp_path, tiny_model_dir, capsys) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir, model)
    players = ["--players", f"m=hf:{model}", "random"]
    command = ["tournament", TIC_TAC_TOE, *players, "--games", "2", "--config", LEGAL, "--out", str(tmp_path / "cup")]
    assert main(command) == main(command) == 0
    (model / "README.md").write_text("nothing that plays")
    assert main(command) == 0
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    capsys.readouterr()
    assert main(command) == 2
    assert "players.m.model_files was" in capsys.readouterr().err


SEVERAL = {
    "policies": {"player": {}, "other": {}, "teacher": {"player": "minimax"}},
    "policy_mapping_fn": {"X": "player", "O": "other"},
}


def test_policies_of_a_checkpoint_are_named(checkpoint, tmp_path, capsys) -> None:
    from rllib_lmgame.algorithms.checkpoints.manifest import write_manifest

    place = Path(checkpoint(**SELF_PLAY, **SEVERAL))
    (place / "hf").rename(place / "model")
    for policy in ("player", "other"):
        shutil.copytree(place / "model", place / "hf" / policy)
    write_manifest(place)
    command = ["tournament", TIC_TAC_TOE, "--games", "2", "--players", "random"]
    assert main([*command, f"pair={place}", "--out", str(tmp_path / "cup")]) == 0  # Each in its own seat.
    played = [record for record in seats(tmp_path / "cup") if len(record["trajectories"]) == 2]
    assert {seat["agent_id"] for record in played for seat in record["trajectories"] if seat.get("turns")} == {"X", "O"}
    assert main(["serve", "--policy", str(place), "--port", "0"]) == 2
    assert f"several trained policies (player, other); write {place}:player" in capsys.readouterr().err
    assert main([*command, f"{place}:othr"]) == 2
    assert "'othr' is no policy or league member of the checkpoint; did you mean 'other'?" in capsys.readouterr().err
    assert main([*command, f"first={place}:other", f"coach={place}:teacher"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith("coach") and "6 of 6 games played" in out


def without_vocabulary(model: Path) -> None:
    (model / "tokenizer.json").unlink()


def of_an_unknown_kind(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "nosuch"}))


@pytest.mark.parametrize(
    ("spoil", "config", "words"),
    [
        (without_vocabulary, "{}", "no tokenizer that can be used at '{}': it cannot spell a text of a game"),
        (of_an_unknown_kind, "{}", "player '.*': .*nosuch"),
        (None, "{language_model: {context_length: 64, max_tokens_per_turn: 16}}", "the first prompt of .* has"),
    ],
)
def test_a_model_that_cannot_play_is_refused(spoil, config, words, tmp_path, tiny_model_dir, capsys) -> None:
    model = shutil.copytree(tiny_model_dir, tmp_path / "model")
    if spoil is not None:
        spoil(model)
    assert main(["play", TIC_TAC_TOE, "--players", f"X=hf:{model}", "O=random", "--config", config]) == 2
    said = capsys.readouterr()
    assert re.search(words.replace("'{}'", re.escape(repr(str(model)))), said.err)
    assert "Traceback" not in said.err and "games played" not in said.out


@pytest.fixture(scope="module")
def vllm_server(tiny_model_dir: str, tmp_path_factory: pytest.TempPathFactory):
    """Address of vLLM's own server with the tiny model."""
    pytest.importorskip("vllm")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    # `vllm serve` is this module; the script asks for a package `vllm`, which the one for CPU is not called.
    words = f"--model {tiny_model_dir} --served-model-name tiny --host 127.0.0.1 --port {port} --max-model-len 400"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words.split(), "--enforce-eager"]
    log = tmp_path_factory.mktemp("server") / "log"
    env = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("wb") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        for _ in range(500):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/models", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@pytest.mark.slow
def test_a_model_served_by_vllm_plays(vllm_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cup"
    players = ["--players", f"far=openai:tiny@{vllm_server}", "random"]
    command = ["tournament", TIC_TAC_TOE, *players, "--games", "4", "--json", "--out", str(out)]
    assert main([*command, "--config", "{language_model: {max_tokens_per_turn: 12}}"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["played"] == 4 and not content["failed"]
    spent = content["counts"]["far"]
    assert spent["requests"] >= 5 and spent["prompt_tokens"] > 100
    assert spent["completion_tokens"] <= 12 * spent["requests"]
    # In a context of 400 tokens a conversation ends with a forfeit sooner than with a fault.
    (table,) = content["standings"]
    assert sum(player["seats"] for player in table["players"]) == 8
    assert main([*command[:3], f"far=openai:tinny@{vllm_server}", "random"]) == 1
    assert "`tinny` does not exist" in capsys.readouterr().out
