"""Searching a corpus by vectors and over HTTP: the index, the server, the client, and DeepSearch with each of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from endpoint_server import JSONRequests, listening

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.envs.games.web.deep_search import retrievers
from rllib_lmgame.envs.games.web.deep_search.game import DeepSearch
from rllib_lmgame.envs.support.retrieval import client
from rllib_lmgame.envs.support.retrieval.client import HttpRetriever, RetrieverError, passages_of
from rllib_lmgame.envs.support.retrieval.dense import DenseRetriever, Keys, load_faiss, write_index
from rllib_lmgame.envs.support.retrieval.encoder import Encoder
from rllib_lmgame.envs.support.retrieval.passages import Passage, PassageFile
from rllib_lmgame.rollouts.options import TextRolloutOptions
from rllib_lmgame.rollouts.plans import EpisodePlan
from rllib_lmgame.rollouts.play import Sessions, play_many
from rllib_lmgame.rollouts.records import GameConfig
from rllib_lmgame.rollouts.seats import Seat
from rllib_lmgame.servers.retriever import RetrieverServer, _Request

WORDS = re.findall(
    r"\w+", "oslo rome paris river capital of italy norway france old new town lake north king bridge the is a"
)
KEYS = Keys("--corpus", "--index", "--model")


def make_encoder(folder: Path, size: int = 16, seed: int = 0) -> str:
    """A tiny model of BERT's family with a tokenizer of whole words and letters."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", *WORDS, *letters]
    vocab += [f"##{letter}" for letter in letters]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(vocab)))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=len(set(vocab)), hidden_size=size, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(shape, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A corpus in both forms of passages, questions, a model and the index of the corpus by it."""
    folder = tmp_path_factory.mktemp("retrieval")
    rng = np.random.default_rng(0)
    lines = []
    for row in range(60):
        title, text = (" ".join(rng.choice(WORDS, n)) for n in (2, 12))
        both = {"title": title, "text": text}
        lines.append(json.dumps({"id": f"p{row}", "contents": f'"{title}"\n{text}'} if row % 2 else both))
    (folder / "corpus.jsonl").write_text("\n".join(lines[:30]) + "\n\n" + "\n".join(lines[30:]))
    (folder / "questions.jsonl").write_text('{"question": "capital of norway?", "golden_answers": ["Oslo"]}')
    found = {name: str(folder / f"{name}.jsonl") for name in ("corpus", "questions")}
    found["model"] = make_encoder(folder / "model")
    found["index"] = str(folder / "flat.index")
    write_index(PassageFile(found["corpus"], ""), Encoder(found["model"], ""), Path(found["index"]))
    return found


@pytest.fixture
def dense(world: dict[str, str]) -> DenseRetriever:
    return DenseRetriever(PassageFile(world["corpus"], KEYS.corpus), world["index"], world["model"], KEYS)


def test_a_search_equals_brute_force_and_the_vectors_are_e5s(world: dict[str, str], dense: DenseRetriever) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(world["model"]), AutoModel.from_pretrained(world["model"]).eval()

    def vector(text: str) -> np.ndarray:  # One by one, without padding.
        ids = tokenizer(text, truncation=True, max_length=256, return_tensors="pt")
        with torch.no_grad():
            mean = model(**ids).last_hidden_state[0].mean(0).numpy()
        return mean / np.linalg.norm(mean)

    passages = list(dense.corpus)
    assert len(passages) == 60 and all(passage.title and passage.text for passage in passages)
    matrix = np.stack([vector(f'passage: "{each.title}"\n{each.text}') for each in passages])
    queries = ["capital of norway", "the old bridge", "paris", "x" * 3000]
    rows, scores = dense.rows(queries, 7)
    for query, found, score in zip(queries, rows, scores, strict=True):
        products = matrix @ vector(f"query: {query}")
        best = np.argsort(-products, kind="stable")[:7]
        np.testing.assert_allclose(score, products[best], atol=1e-5)
        np.testing.assert_allclose(products[found], products[best], atol=1e-5)
    assert dense.search(["paris"], 7) == [[passages[row] for row in rows[2]]]
    assert len(dense.search(["paris"], 100)[0]) == 60


def test_an_index_that_is_none_of_this_corpus_by_this_model_is_refused(world: dict[str, str], tmp_path: Path) -> None:
    faiss, corpus = load_faiss(), PassageFile(world["corpus"], "")

    def refused(index: str | Path, model: str, said: str, corpus: PassageFile = corpus) -> None:
        with pytest.raises(ConfigError, match=said):
            DenseRetriever(corpus, index, model, KEYS)

    refused(tmp_path / "none", world["model"], "--index: .*does not exist; `rllib retriever --build`")
    refused(world["index"], str(tmp_path / "none"), "--model: .*none' cannot be loaded: [^\n]*[^.\n]; give a directory")
    refused(world["index"], make_encoder(tmp_path / "wide", size=32), "vectors of 16 numbers, and .* makes 32")
    refused(world["index"], make_encoder(tmp_path / "other", seed=1), "of another model, or of another corpus")
    (tmp_path / "c.jsonl").write_text('{"title": "a", "text": "b"}')
    refused(world["index"], world["model"], "has 60 vectors, and .* 1 passages", PassageFile(tmp_path / "c.jsonl", ""))
    cut = tmp_path / "cut.index"
    cut.write_bytes(Path(world["index"]).read_bytes()[:500])
    refused(cut, world["model"], "is no FAISS index that can be read")
    cut.write_bytes(b"nonsense")
    refused(cut, world["model"], "is no FAISS index that can be read")
    distances = faiss.IndexFlatL2(16)
    distances.add(np.zeros((60, 16), np.float32))
    faiss.write_index(distances, str(cut))
    refused(cut, world["model"], "compares by distances")
    with pytest.raises(ConfigError, match="must be trained first"):
        write_index(corpus, Encoder(world["model"], ""), cut, "IVF4,Flat", "--build")
    with pytest.raises(ConfigError, match="--build: FAISS knows no index 'Nonsense'"):
        write_index(corpus, Encoder(world["model"], ""), cut, "Nonsense", "--build")


class Served(ThreadingHTTPServer):
    """A retriever that answers what ``answer`` says: a status and content."""

    daemon_threads = True

    def __init__(self, answer: Callable[[dict[str, Any]], tuple[int, Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/retrieve"


class _Requests(JSONRequests):
    server: Served

    def do_POST(self) -> None:
        asked = self.asked()
        self.server.asked.append(asked)
        self.send(*self.server.answer(asked))


def echo(asked: dict[str, Any]) -> tuple[int, Any]:
    """Search-R1's form: one passage for each query, which says it."""
    return 200, {
        "result": [[{"document": {"id": "1", "contents": f'"T"\n{q}'}, "score": 1.0}] for q in asked["queries"]]
    }


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as servers:
        yield lambda answer=echo: servers.enter_context(listening(Served(answer)))


def test_searches_that_come_together_are_one_request(serve: Callable[..., Served]) -> None:
    server = serve()
    assert searched_together(server.url, [[f"q{i}"] for i in range(20)]) == [
        [[Passage("T", f"q{i}")]] for i in range(20)
    ]
    assert [sorted(asked["queries"]) for asked in server.asked] == [sorted(f"q{i}" for i in range(20))]
    assert server.asked[0]["topk"] == 1 and server.asked[0]["return_scores"] is True


@pytest.mark.parametrize("status", client.PASSING)
def test_faults_that_may_pass_are_tried_again(serve: Callable[..., Served], status: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)
    server = serve(lambda asked: echo(asked) if len(server.asked) > 2 else (status, b"busy"))
    assert HttpRetriever(server.url, 60, "k").search(["a", "b"], 1) == [[Passage("T", "a")], [Passage("T", "b")]]
    asked = [each["queries"] for each in server.asked]
    assert asked == [["a", "b"]] * 3 if status != client.FAILED else sorted(asked[2:]) == [["a"], ["b"]]
    assert HttpRetriever(server.url, 60, "k").search([], 1) == [] and len(server.asked) == len(asked)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, b"gone"), "HTTP 404: gone"),
        ((302, b""), "HTTP 302"),
        ((200, b"<html>"), "sent no JSON with a `result`: <html>"),
        ((200, {"result": "x"}), "results are str, not a list"),
        ((200, {"result": [[], []]}), "results for 2 queries; asked were 1"),
        ((200, {"result": [[{"document": {"contents": 5}}]]}), "result 1: field 'contents' is int"),
        ((200, {"result": [[{"document": {"contents": ""}}]]}), "result 1: the passage has no text"),
        ((503, b"busy"), "answered HTTP 503: busy"),
    ],
)
def test_answers_that_are_none_are_told(serve: Callable[..., Served], answer: Any, said: str) -> None:
    server = serve(lambda asked: answer)
    with pytest.raises(RetrieverError, match=said):
        HttpRetriever(server.url, 0.2 if answer[0] == 503 else 60, "k").search(["a"], 1)


def test_a_server_that_hangs_is_given_up(serve: Callable[..., Served]) -> None:
    never = threading.Event()
    server = serve(lambda asked: (never.wait(), (200, b""))[1])
    with pytest.raises(RetrieverError, match=r"gave no answer within 0\.2 s"):
        HttpRetriever(server.url, 0.2, "k").search(["a"], 1)
    never.set()


def test_a_query_that_breaks_the_server_fails_its_own_search_alone(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do not wait for it: they have their passages while it is still tried again."""
    monkeypatch.setattr(client, "FIRST_WAIT_S", 0.01)
    others_are_done, tried = threading.Event(), []

    def answer(asked: dict[str, Any]) -> tuple[int, Any]:
        queries = asked["queries"]
        if "bad" not in queries:
            return echo(asked)
        tried.append(queries)
        if queries != ["bad"]:
            return 500, b"broken"
        return (404, b"given up") if others_are_done.wait(0) else (500, b"broken")

    searches = [["a"], ["b", "c"], ["d"], ["e", "bad"], ["f", "g"]]
    found = searched_together(serve(answer).url, searches, lambda place: place == 3 or others_are_done.set())
    for place in (0, 1, 2, 4):
        assert found[place] == [[Passage("T", query)] for query in searches[place]]
    assert "HTTP 404: given up" in found[3]
    assert [len(queries) for queries in tried[:3]] == [8, 8, 1]


def searched_together(
    url: str, searches: list[list[str]], done: Callable[[int], Any] = lambda place: None
) -> list[Any]:
    """What each of the searches found that went out as one request, or how it failed; ``done`` is told of each."""
    everybody_is_there = threading.Event()
    retriever = HttpRetriever(url, 60, "k", gather=everybody_is_there.wait)

    def searched(place: int) -> Any:
        try:
            return retriever.search(searches[place], 1)
        except RetrieverError as error:
            return str(error)
        finally:
            done(place)

    with ThreadPoolExecutor(len(searches)) as threads:
        found = threads.map(searched, range(len(searches)))
        while sum(len(batch.queries) for batch in retriever._open.values()) < sum(map(len, searches)):
            time.sleep(0.001)
        everybody_is_there.set()
        return list(found)


def test_forms_of_results() -> None:
    plain, passage = {"title": "t", "text": "x"}, Passage("t", "x")
    assert passages_of([[passage, plain, '"t"\nx', {"document": plain}]], 1) == [[passage] * 4]
    assert passages_of([], 1) == [[]] and passages_of([[], [plain]], 2) == [[], [passage]]


@pytest.mark.parametrize(
    ("answer", "said"),
    [(None, "no answer"), ((200, b"{}"), "sent no JSON with a `result`"), ((503, b"no"), "HTTP 503")],
)
def test_a_retriever_that_is_not_there_is_told_before_a_run(
    world: dict[str, str], serve: Callable[..., Served], fresh: None, tmp_path: Path, answer: Any, said: str
) -> None:
    from rllib_lmgame.experiments.checks.check import check_experiments
    from rllib_lmgame.experiments.checks.outside import check_servers
    from rllib_lmgame.experiments.files.reading import read_experiments

    url = "http://127.0.0.1:9/retrieve" if answer is None else serve(lambda asked: answer).url
    run = {"run": "LMGamePPO", "env": "lmgame/DeepSearch-v0", "stop": {"rl_iteration": 1}}
    run["config"] = {"env_config": {"data": world["questions"], "retriever": url, "split": "all"}}
    (tmp_path / "run.yaml").write_text(json.dumps({"search": run}))
    checked = check_experiments(read_experiments(str(tmp_path / "run.yaml")))
    with pytest.raises(ConfigError, match=rf"config.env_config.retriever: .*{said}.*`rllib retriever` starts one"):
        check_servers(checked, needed=True)
    check_servers(checked, needed=False)
    assert checked[0].missing


@pytest.fixture
def fresh() -> Iterator[None]:
    """Retrievers are made once per process; here once per test."""
    retrievers.retriever_of.cache_clear()
    yield
    retrievers.retriever_of.cache_clear()


class Own:
    """A retriever of one's own."""

    def search(self, queries: list[str], topk: int) -> list[list[dict[str, str]]]:
        if queries == ["fail"]:
            raise ZeroDivisionError("no")
        return [[{"title": "Own", "text": query}] * (topk + 1) for query in queries]


def game(world: dict[str, str], **options: Any) -> DeepSearch:
    made = DeepSearch(data=world["questions"], split="all", show_rules=False, **options)
    made.reset(seed=0)
    return made


def test_deep_search_by_a_server(world: dict[str, str], serve: Callable[..., Served], fresh: None) -> None:
    server = serve()
    playing = game(world, retriever=server.url, top_k=2)
    assert "[1] T: fish" in playing.step("search[fish]")[0]
    assert playing.slow_calls
    assert [asked["queries"] for asked in server.asked] == [["fish"]] and server.url in playing.check_ready()
    server.answer = lambda asked: (404, b"gone")
    with pytest.raises(RetrieverError, match="HTTP 404"):
        playing.step("search[fish]")


class Searcher(Seat):
    """Searches for the question, then answers."""

    async def act(self, session: Any, observation: Any, call: Any) -> str:
        question = observation.text.splitlines()[0].removeprefix("Question: ")
        return "answer[x]" if "Searched so far" in observation.text else f"search[{question}]"


def test_a_search_that_fails_costs_its_episode_which_is_counted(
    tmp_path: Path, serve: Callable[..., Served], fresh: None
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{kind}?", "answer": "x"}) for kind in ("good", "bad", "mad")))
    never = threading.Event()

    def answer(asked: dict[str, Any]) -> tuple[int, Any]:
        if asked["queries"] == ["mad?"]:
            never.wait()
        return (200, {"result": "nonsense"}) if asked["queries"] == ["bad?"] else echo(asked)

    options = {"data": str(path), "split": "all", "show_rules": False, "retriever": serve(answer).url}
    options["retriever_timeout_s"] = 0.5
    asked = {seed: DeepSearch(**options).reset(seed=seed)[0].removeprefix("Question: ") for seed in range(6)}
    plans = [EpisodePlan(f"e{seed}", 0, seed, f"g{seed}", seed) for seed in asked]
    seats = lambda session, plan: {"player": Searcher("player", "player", "p")}  # noqa: E731
    games = [GameConfig(env="lmgame/DeepSearch-v0", env_config=options)]
    played = asyncio.run(play_many(plans, games, seats, Sessions(), TextRolloutOptions(env_step_timeout_s=0.2), 1))
    never.set()
    assert {one.plan.seed for one in played.episodes} == {seed for seed in asked if asked[seed] == "good?"} != set()
    assert all(one.infos["player"]["success"] for one in played.episodes)
    said = {asked[failure.plan.seed]: (failure.reason, failure.message) for failure in played.failures}
    assert set(said) == {"bad?", "mad?"} and {reason for reason, _ in said.values()} == {"env_busy"}
    assert "results are str" in said["bad?"][1] and "gave no answer within 0.5 s" in said["mad?"][1]


def test_deep_search_by_vectors_finds_what_the_index_does(
    world: dict[str, str], dense: DenseRetriever, fresh: None
) -> None:
    playing = game(world, retriever="e5", corpus=world["corpus"], index=world["index"], encoder=world["model"])
    shown = playing.step("search[old bridge]")[0]
    best = dense.search(["old bridge"], 3)[0]
    assert [f"[{i}] {each.title}: {each.text}" for i, each in enumerate(best, 1)] == shown.splitlines()[-3:]


def test_deep_search_by_a_class_of_ones_own(world: dict[str, str], fresh: None) -> None:
    playing = game(world, retriever=f"{__name__}:Own", top_k=2)
    assert playing.step("search[x]")[0].splitlines()[-2:] == ["[1] Own: x", "[2] Own: x"]
    with pytest.raises(RetrieverError, match="retriever Own raised ZeroDivisionError: no"):
        playing.step("search[fail]")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retriever": "http://"}, "env_config.retriever: 'http://' is no address"),
        (
            {"retriever": "bm26"},
            "env_config.retriever: 'bm26' is not .*; this option also takes bm25, e5 or an address",
        ),
        ({"retriever": "e5", "corpus": "c"}, "env_config.index: must be given with data and corpus"),
        ({"index": "i"}, "env_config.corpus: must be given"),
    ],
)
def test_what_cannot_work_is_refused_at_once(world: dict[str, str], fresh: None, options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        game(world, **options)


async def _served(dense: Any, use: Callable[[str], Any]) -> Any:
    """What ``use`` gives, in a thread beside a server whose address it is given."""
    server, port = RetrieverServer(dense, 3), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(server.run("127.0.0.1", 0, port.set_result))
    try:
        return await asyncio.to_thread(use, f"http://127.0.0.1:{await port}/retrieve")
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_the_server_answers_as_search_r1s(dense: DenseRetriever) -> None:
    import urllib.error
    import urllib.request

    def ask(url: str, body: bytes) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body)) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def use(url: str) -> None:
        rows, scores = dense.rows(["rome", "old lake"], 3)
        status, said = ask(url, b'{"queries": ["rome", "old lake"], "topk": 2, "return_scores": true}')
        assert status == 200 and [len(found) for found in said["result"]] == [2, 2]
        first, passage = said["result"][1][0], dense.corpus[int(rows[1][0])]
        assert first["score"] == pytest.approx(float(scores[1][0]), abs=1e-5)
        assert first["document"]["contents"] == f'"{passage.title}"\n{passage.text}'
        assert first["document"]["id"] in (f"p{rows[1][0]}", str(rows[1][0]))
        status, plain = ask(url, b'{"query": "rome"}')
        assert len(plain["result"][0]) == 3 and plain["result"][0][0] == said["result"][0][0]["document"]
        assert HttpRetriever(url, 60, "k").search(["rome"], 3) == dense.search(["rome"], 3)
        assert ask(url, b'{"queries": []}') == (200, {"result": []})
        for wrong in (
            b"",
            b"[]",
            b'{"queries": [1]}',
            b"{}",
            b'{"query": "a", "topk": 0.5}',
            b'{"query": "a", "topk": -1}',
        ):
            assert ask(url, wrong)[0] == 400, wrong

    asyncio.run(_served(dense, use))


def test_a_query_that_breaks_the_search_of_a_server_costs_its_own_request_alone(dense: DenseRetriever) -> None:
    def rows(queries: list[str], topk: int) -> Any:
        if "bad" in queries:
            raise RuntimeError("broken")
        return dense.rows(queries, topk)

    async def found() -> list[Any]:
        server = RetrieverServer(SimpleNamespace(corpus=dense.corpus, rows=rows), 3)
        future = asyncio.get_running_loop().create_future
        asked = [_Request(queries, 2, False, future()) for queries in (["rome"], ["old", "bad"], ["lake"])]
        await server._search(asked)
        return await asyncio.gather(*(each.found for each in asked), return_exceptions=True)

    rome, bad, lake = asyncio.run(found())
    assert [len(rome[0]), len(lake[0]), str(bad)] == [2, 2, "broken"]


@pytest.mark.slow
def test_the_command_builds_an_index_serves_it_and_stops(world: dict[str, str], tmp_path: Path) -> None:
    index = tmp_path / "new.index"
    command = [
        sys.executable,
        "-m",
        "rllib_lmgame.cli",
        "retriever",
        "--corpus",
        world["corpus"],
        "--model",
        world["model"],
    ]
    command += ["--index", str(index)]
    built = subprocess.run([*command, "--build"], capture_output=True, text=True)
    assert built.returncode == 0 and "60 vectors of 16 numbers" in built.stdout, built.stderr
    assert np.array_equal(
        load_faiss().read_index(str(index)).reconstruct_n(0, 60),
        load_faiss().read_index(world["index"]).reconstruct_n(0, 60),
    )
    again = subprocess.run([*command, "--build"], capture_output=True, text=True)
    assert again.returncode == 2 and "--index" in again.stderr and "exists" in again.stderr
    serving = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert serving.stdout is not None
        said = serving.stdout.readline()
        assert said.startswith("60 passages at http://127.0.0.1:")
        assert len(HttpRetriever(said.split()[-1], 60, "k").search(["rome"], 2)[0]) == 2
        serving.terminate()
        assert serving.communicate(timeout=60)[0] == "stopped; 1 requests were answered\n"
        assert serving.returncode == 128 + signal.SIGTERM
    finally:
        serving.kill()
        serving.wait()
