"""Publishing a policy of a checkpoint on a Hugging Face hub."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.downloads import hub
from rllib_lmgame.policies.model.files import INDEX_FILE

_WEIGHTS = re.compile(rf"model(-\d+-of-\d+)?\.safetensors|{re.escape(INDEX_FILE)}")
"""Files that loaders take a model's weights from: one of them that is left over stands for the new ones."""


def push(model: Path, repository: str, *, public: bool, revision: str | None, message: str) -> str:
    """Upload a model's directory as one commit; returns its address. A repository that is not there is made.

    Weights of before that lie in other files are removed by the same commit. One that is public already is named first.

    Raises: ConfigError: the hub refuses it or cannot be reached, or the name is none.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    files = {file.name: file for file in sorted(model.iterdir()) if file.is_file() and not file.is_symlink()}
    added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(file)) for name, file in files.items()]
    api = HfApi(endpoint=hub.endpoint(), library_name="rllib-lmgame")
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
        raise ConfigError("", f"{hub.endpoint()}/{repository}: {first_line(error)}") from None
    return str(commit.commit_url)
