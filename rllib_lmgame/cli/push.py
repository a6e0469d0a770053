"""``rllib push``: publish a checkpoint's policy on a Hugging Face hub."""

from __future__ import annotations

import argparse

from rllib_lmgame.base.errors import CheckpointError, ConfigError, did_you_mean
from rllib_lmgame.base.text import printable, size_text
from rllib_lmgame.cli import options
from rllib_lmgame.cli.options import TRUST, Option


@options.command(
    "Publish a trained policy: weights, tokenizer, and a model card with how it was trained, its learning curve, "
    "held-out levels, a game, and a program that plays it. HF_TOKEN (or `hf auth login`) says who you are, HF_ENDPOINT "
    "names another hub.",
    Option("CHECKPOINT", "checkpoint, or the directory of its trial"),
    Option("REPO", "ORGANISATION/NAME; it is created if it does not exist", dest="repository"),
    Option("--policy NAME", "which of several trained policies"),
    Option("--public", "make a new repository public (default: private)"),
    Option("--revision BRANCH", "branch to push to (default: main)"),
    Option("--message TEXT", "commit message"),
    Option("--dry-run", "list the files, send nothing"),
    TRUST,
)
def command(args: argparse.Namespace) -> int:
    from rllib_lmgame.algorithms.checkpoints.manifest import iteration_of
    from rllib_lmgame.algorithms.checkpoints.paths import find_checkpoint, is_own_checkpoint
    from rllib_lmgame.evaluation.saved_config import open_checkpoint, saved_model
    from rllib_lmgame.experiments.results.publish import push

    place = find_checkpoint(args.checkpoint)
    if not is_own_checkpoint(place):
        raise CheckpointError(f"{place} is no checkpoint with a language model")
    checkpoint, config = open_checkpoint(place, trust=args.trust_checkpoint)
    trained = config.trained_policies()
    policy = args.policy or trained[0]
    if policy not in trained or (args.policy is None and len(trained) > 1):
        hint = did_you_mean(args.policy or "", trained, f"trained policies: {', '.join(trained)}")
        raise ConfigError("--policy", f"name the policy to push; {hint}")
    model = saved_model(checkpoint, config, policy)
    for file in sorted(model.iterdir()):
        print(printable(f"{size_text(file.stat().st_size):>8}  {file.name}"))
    if not args.dry_run:
        message = args.message or f"{policy} after iteration {iteration_of(checkpoint) or '?'}"
        print(push(model, args.repository, public=args.public, revision=args.revision, message=message))
    return 0
