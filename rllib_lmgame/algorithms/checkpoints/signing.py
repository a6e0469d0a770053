"""This user's key: by it a file that a run of this user wrote is told from one that came from elsewhere.

Owning a file proves nothing, since what is unpacked or copied belongs to whoever did it. So every checkpoint's
manifest, and the directory of every experiment, carries a signature (HMAC-SHA256) by a key that only this user can
read, in ``$XDG_STATE_HOME/rllib_lmgame`` (by default ``~/.local/state/rllib_lmgame``). It is made at first use.
Machines with a home directory in common have one key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

KEY_BYTES = 32


def key_file() -> Path:
    """Where the key is kept. A relative ``XDG_STATE_HOME`` is none, as its specification says."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "rllib_lmgame" / "signing.key"


def sign(purpose: str, text: str) -> str | None:
    """Signature of ``text`` for ``purpose``, or ``None`` where no key can be kept."""
    try:
        key = _read_key() or _make_key()
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows the home directory.
        logger.info("Nothing is signed: no key can be kept (%s).", error)
        return None
    return _signature(key, purpose, text)


def is_signature(purpose: str, text: str, signature: object) -> bool:
    """Whether this user's key gave ``signature`` to ``text`` for ``purpose``."""
    if not isinstance(signature, str):
        return False
    try:
        key = _read_key()
    except (OSError, RuntimeError):
        return False
    return key is not None and hmac.compare_digest(
        _signature(key, purpose, text).encode(), signature.encode("utf-8", "replace")
    )


def _signature(key: bytes, purpose: str, text: str) -> str:
    return hmac.new(key, f"{purpose}\0{text}".encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    """The key, if there is one. Raises: PermissionError: somebody else can have read or written it."""
    path = key_file()
    if path.exists() and not path.is_file():
        raise PermissionError(f"{path} is no file; remove it, and a new one is made")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(KEY_BYTES)
    except FileNotFoundError:
        return None
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} can be read or written by others; remove it, and a new one is made")
    if len(key) < KEY_BYTES:
        raise PermissionError(f"{path} is damaged; remove it, and a new one is made")
    return key


def _make_key() -> bytes:
    """A new key, or that of another process that was faster."""
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(scratch, path)
    finally:
        os.unlink(scratch)
    key = _read_key()
    if key is None:
        raise FileNotFoundError(f"{path} cannot be made")
    return key
