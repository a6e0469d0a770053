"""What a Hugging Face hub has: files of a repository, their sizes and hashes, and their addresses.

``HF_ENDPOINT`` is its address, ``HF_TOKEN`` is sent to it alone, and ``HF_HUB_OFFLINE`` keeps from all requests.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
from dataclasses import dataclass

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.text import first_line
from rllib_lmgame.downloads.web import BROKEN, TIMEOUT_S, WITHOUT, open_address, refused

_MOST_LISTED = 64 << 20
_YES = ("1", "on", "yes", "true")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes:
        path: In it.
        size: Bytes, where the hub says.
        sha256: Of files in its large storage.
        blob: Git's hash (SHA-1 of ``blob SIZE\\0`` and the content), of other files.
    """

    path: str
    size: int | None
    sha256: str | None
    blob: str | None


def endpoint() -> str:
    """The hub's address."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def headers() -> dict[str, str]:
    """Headers of requests to the hub. Raises: ConfigError: the token is invalid; it is not printed."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise ConfigError("", "HF_TOKEN holds no token: it has characters that no request can carry")
    return {"Authorization": f"Bearer {token}"} if token else {}


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
        return (
            f"{endpoint()} does not answer ({first_line(error) or type(error).__name__}), and this machine has no copy"
        )
    return None


def listing(repository: str, revision: str) -> tuple[str, list[HubFile]]:
    """The commit of a repository's revision, and all files of it.

    Args:
        repository: ``datasets/owner/name`` or ``owner/name`` of a model.
        revision: Branch, tag or commit.

    Raises: ConfigError: the hub has it not, refuses it, or does not answer.
    """
    kind, name = (
        ("datasets", repository.removeprefix("datasets/"))
        if repository.startswith("datasets/")
        else ("models", repository)
    )
    url = f"{endpoint()}/api/{kind}/{name}/revision/{urllib.parse.quote(revision, safe='')}?blobs=true"
    try:
        with open_address(url, headers()) as answer:
            said = json_files.parse(answer.read(_MOST_LISTED))
        files = [_file(each) for each in said["siblings"]]
        return str(said["sha"]), files
    except urllib.error.HTTPError as error:
        raise _refused(repository, url, error) from None
    except BROKEN as error:
        raise refused(url, error) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError("", f"{url} answers no list of files ({type(error).__name__}: {error})") from None


def address(repository: str, commit: str, path: str) -> str:
    """The address of a file."""
    return f"{endpoint()}/{repository}/resolve/{commit}/{urllib.parse.quote(path)}"


def _file(said: dict[str, object]) -> HubFile:
    large = said.get("lfs")
    size = said.get("size")
    blob = said.get("blobId")
    return HubFile(
        str(said["rfilename"]),
        size if isinstance(size, int) else None,
        str(large["sha256"]) if isinstance(large, dict) and "sha256" in large else None,
        str(blob) if isinstance(blob, str) and not large else None,
    )


def _refused(repository: str, url: str, error: urllib.error.HTTPError) -> ConfigError:
    if error.code in (401, 403):
        token = "the token in HF_TOKEN may not read it" if headers() else "set HF_TOKEN to a token that may read it"
        return ConfigError("", f"{endpoint()} refuses {repository} ({error.code}): {token}")
    if error.code == 404:
        return ConfigError("", f"{endpoint()} has no {repository}, or not the revision asked for ({url})")
    return refused(url, error)
