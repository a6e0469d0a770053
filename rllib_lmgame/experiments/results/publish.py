"""Publishing a policy of a checkpoint on a Hugging Face hub, its card with the curve and the report of its run."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rllib_lmgame.algorithms.checkpoints.cards import game_text, heldout_text
from rllib_lmgame.algorithms.checkpoints.manifest import MILESTONES_FILE, REPORT_FILE
from rllib_lmgame.base.errors import ConfigError, MissingDependencyError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.data_sets import hub
from rllib_lmgame.experiments.results.curves import read_curves, saved_milestones
from rllib_lmgame.experiments.results.figures import draw
from rllib_lmgame.policies.model.card import CARD_FILE
from rllib_lmgame.policies.model.files import INDEX_FILE

CURVE_FILE = "learning-curve.png"
_WEIGHTS = re.compile(rf"model(-\d+-of-\d+)?\.safetensors|{re.escape(INDEX_FILE)}")
"""Files that loaders take a model's weights from: one of them that is left over stands for the new ones."""


def files_to_push(model: Path, checkpoint: Path) -> dict[str, Path | bytes]:
    """Name -> file or content of what is published: all of ``model``, with what the trial has beside it."""
    files: dict[str, Path | bytes] = {
        file.name: file for file in sorted(model.iterdir()) if file.is_file() and not file.is_symlink()
    }
    curve = _curve(checkpoint.parent)
    if curve is not None:
        files[CURVE_FILE] = curve
    card = (model / CARD_FILE).read_text(encoding="utf-8") if CARD_FILE in files else ""
    if card:
        files[CARD_FILE] = _card(card, checkpoint, with_curve=curve is not None).encode()
    return files


def _card(card: str, checkpoint: Path, with_curve: bool) -> str:
    trial = checkpoint.parent
    before, after = _heldout(checkpoint / MILESTONES_FILE), _heldout(trial / REPORT_FILE)
    if after:
        card = card.replace(before, after) if before and before in card else card + after
    if "\n## A game\n" not in card:
        card += game_text(trial / "episodes")
    return card + f"\n![learning curve]({CURVE_FILE})\n" * with_curve


def _heldout(file: Path) -> str:
    """The table of held-out levels in a file; nothing where it is not there, or damaged."""
    try:
        return heldout_text(saved_milestones(file))
    except (ConfigError, OSError, ValueError, TypeError, AttributeError):
        return ""


def _curve(trial: Path) -> bytes | None:
    """The figure of a trial; ``None`` where there are no results to draw, or nothing to draw them with."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            curves, metric, _ = read_curves([trial])
            return draw(curves, Path(scratch) / "curve", metric, "").read_bytes()
        except (ConfigError, MissingDependencyError, OSError):
            return None


def push(
    files: Mapping[str, Path | bytes], repository: str, *, public: bool, revision: str | None, message: str
) -> str:
    """Upload files as one commit; returns its address. A repository that is not there is made.

    Weights of before that lie in other files are removed by the same commit. One that is public already is named first.

    Raises: ConfigError: the hub refuses it or cannot be reached, or the name is none.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=hub.endpoint(), library_name="rllib-lmgame")
    added = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=content if isinstance(content, bytes) else str(content))
        for name, content in files.items()
    ]
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        there = api.model_info(repository, revision=revision)
        if there.private is False and not public:
            print(f"note: {repository} is public", file=sys.stderr)
        names = [file.rfilename for file in there.siblings or ()]
        stale = [name for name in names if _WEIGHTS.fullmatch(name) and name not in files]
        removed = [CommitOperationDelete(name, is_folder=False) for name in stale]
        commit = api.create_commit(repository, [*added, *removed], commit_message=message, revision=revision)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        hint = "; set HF_TOKEN to a token that may write, or run `hf auth login`" if status in (401, 403) else ""
        raise ConfigError("", f"{repository}: the hub refused it ({first_line(error)}){hint}") from None
    except Exception as error:  # Nobody there, a name that is none, an answer of another form: each has its own.
        raise ConfigError("", f"{repository}: {first_line(error)}") from None
    return str(commit.commit_url)
