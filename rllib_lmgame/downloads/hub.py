"""Files of a Hugging Face hub and of other addresses, by ``huggingface_hub``.

``HF_ENDPOINT`` is the hub's address, ``HF_TOKEN`` is sent to it alone, and ``HF_HUB_OFFLINE`` forbids all requests.
"""

from __future__ import annotations

import os
import shutil
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line, size_text

TIMEOUT_S = 30.0
"""Longest silence of the hub when it is first asked."""
WITHOUT = "or copy the set's folder in RLLIB_LMGAME_DATA from a machine that has it"
_YES = ("1", "on", "yes", "true")


def endpoint() -> str:
    """The hub's address."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def check_online(what: str) -> None:
    """Raises: ConfigError: the environment forbids requests."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").lower() in _YES:
            raise ConfigError("", f"{name} is set, so {what} is not asked for; unset it, {WITHOUT}")


def silence(repository: str) -> str | None:
    """That the hub does not answer its own library, which would ask for half a minute; ``None``: it answers.

    Also ``None`` where ``repository`` can be none, which that library says in words.
    """
    from huggingface_hub.utils import HFValidationError, get_session, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError:
        return None
    try:
        # What that library asks first: a mirror may have no front page, or lead to another machine from there.
        asked = f"{endpoint()}/{repository}/resolve/main/config.json"
        get_session().head(asked, timeout=TIMEOUT_S, follow_redirects=False)
    except Exception as error:  # Of the HTTP client that the library has.
        return f"{endpoint()} does not answer ({_why(error)}), and this machine has no copy"
    return None


def listing(repository: str, revision: str) -> tuple[str, list[Any]]:
    """The commit of a repository's revision, and all files of it as ``huggingface_hub.hf_api.RepoSibling``.

    Args:
        repository: ``datasets/owner/name`` or ``owner/name`` of a model.
        revision: Branch, tag or commit.

    Raises: ConfigError: the hub has it not, refuses it, or does not answer.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import close_session

    close_session()  # The hub may have closed a connection that was kept.
    kind = "dataset" if repository.startswith("datasets/") else "model"
    try:
        found = HfApi(endpoint=endpoint(), token=get_token()).repo_info(
            repository.removeprefix("datasets/"),
            repo_type=kind,
            revision=revision,
            files_metadata=True,
            timeout=TIMEOUT_S,
        )
        return str(found.sha), list(getattr(found, "siblings", None) or ())
    except Exception as error:  # Also of its HTTP client, and of a list that is none.
        hint = "set HF_TOKEN to a token that may read it" if _status(error) in (401, 403) else WITHOUT
        raise ConfigError("", f"{endpoint()} gives no list of {repository} ({_why(error)}); {hint}") from None


def address(repository: str, commit: str, path: str) -> str:
    """The address of a file."""
    return f"{endpoint()}/{repository}/resolve/{commit}/{urllib.parse.quote(path)}"


def headers() -> dict[str, str]:
    """Headers of requests to the hub."""
    from huggingface_hub import get_token
    from huggingface_hub.utils import build_hf_headers

    return build_hf_headers(token=get_token(), library_name="rllib-lmgame")


def download(url: str, target: Path, headers: Mapping[str, str] = {}, size: int | None = None) -> None:
    """Fetch a file to ``target``, which gets its name when it is whole and has ``size`` bytes, where that is known.

    What was fetched before stays in ``target.part`` and is gone on with.

    Raises: ConfigError: the server refuses or breaks off for good, or the file cannot be written.
    """
    from huggingface_hub.file_download import http_get

    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("ab") as file:
            http_get(url, file, resume_size=file.tell(), headers=dict(headers), expected_size=size)
    except Exception as error:  # Of the library, its HTTP client, and the disk.
        here = part.stat().st_size if part.exists() else 0
        if _status(error) == 416 or here > (size or here):  # It is no part of the file that is there now.
            part.unlink(missing_ok=True)
            here = 0
        kept = f"; {here:,} bytes are kept, and the same command goes on from there" if here else ""
        raise ConfigError("", f"cannot fetch {url}: {_why(error)}; {WITHOUT}{kept}") from None
    part.replace(target)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raises: ConfigError: the disk has less than ``needed`` bytes left."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConfigError(
            "",
            f"{what} needs {size_text(needed)} in {folder}, where {size_text(free)} are free; make room, or set "
            "RLLIB_LMGAME_DATA to a folder on a larger disk",
        )


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _why(error: Exception) -> str:
    return first_line(error) or type(error).__name__
