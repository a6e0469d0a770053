"""``rllib retriever``: search a corpus by vectors, for DeepSearch and others."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.http_server import check_free
from rllib_lmgame.base.new_files import new_file, out_path, writing
from rllib_lmgame.base.threads import threads_here
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import HOST, PORT, Option


@options.command(
    "Serve a corpus at http://HOST:PORT/retrieve, in the protocol of Search-R1: DeepSearch's option `retriever` takes "
    "the address. With --build, make its index first.",
    Option("--corpus FILE", "passages: JSON lines with title and text, or contents", required=True),
    Option("--index FILE", "FAISS index of the corpus; mapped from disk", required=True),
    Option("--model M", "hub id or directory of the encoder", default="intfloat/e5-base-v2"),
    Option(
        "--build [KIND]",
        "build the index and exit; KIND as FAISS's index_factory names it (Flat, which is exact)",
        const="Flat",
    ),
    Option("--topk K", "passages for a query", int, 3),
    HOST,
    PORT,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.envs.support.retrieval.dense import DenseRetriever, Keys, load_faiss
    from rllib_lmgame.envs.support.retrieval.passages import PassageFile
    from rllib_lmgame.servers.retriever import MOST_RESULTS, RetrieverServer

    if not 1 <= args.topk <= MOST_RESULTS:
        raise ConfigError("--topk", f"must be from 1 to {MOST_RESULTS}, got {args.topk}")
    if args.build is None:
        check_free(args.host, args.port)
    faiss = load_faiss()
    import torch

    for set_threads in (torch.set_num_threads, faiss.omp_set_num_threads):
        set_threads(threads_here())
    corpus = PassageFile(args.corpus, "--corpus")
    if args.build is not None:
        return _build(corpus, args)
    retriever = DenseRetriever(corpus, args.index, args.model, Keys("--corpus", "--index", "--model"))
    retriever.rows(["capital"], args.topk)  # So that the first to ask does not wait for what is read once.
    server = RetrieverServer(retriever, args.topk)

    def ready(port: int) -> None:
        print(f"{len(corpus):,} passages at http://{args.host}:{port}/retrieve", flush=True)

    try:
        asyncio.run(server.run(args.host, args.port, ready))
    except KeyboardInterrupt:
        print(f"stopped; {server.answered:,} requests were answered")
    return 0


def _build(corpus: Any, args: argparse.Namespace) -> int:
    from rllib_lmgame.envs.support.retrieval.dense import write_index
    from rllib_lmgame.envs.support.retrieval.encoder import Encoder

    def progress(done: int) -> None:
        end = "\n" if done == len(corpus) else ""
        print(f"\r{done:,} of {len(corpus):,} passages", end=end, file=sys.stderr, flush=True)

    out = out_path(args.index, "--index")
    with new_file(out, "--index") as file:
        encoder = Encoder(args.model, "--model")
        with writing(out, "--index"):
            write_index(corpus, encoder, file, args.build, "--build", progress)
    print(f"{out}: {len(corpus):,} vectors of {encoder.size} numbers")
    return 0
