"""Unpacking ZIP archives of others: nothing is written outside the folder, and no links."""

from __future__ import annotations

import errno
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.downloads.web import check_room

_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_DEEPEST = 3
"""Archives in archives, at most."""


def unpack(archive: Path, folder: Path, within: int = _DEEPEST) -> None:
    """Unpack an archive and the archives in it, which go once they are unpacked.

    Args:
        archive: A ZIP file.
        folder: A new folder of its own.

    Raises: ConfigError: it is damaged, a name in it leads out of the folder, it holds links, or the disk is full.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            wanted = [entry for entry in content.infolist() if not entry.filename.startswith("__MACOSX/")]
            for entry in wanted:
                _check(entry, archive)
            check_room(folder.parent, sum(entry.file_size for entry in wanted), f"unpacking {archive.name}")
            folder.mkdir(parents=True, exist_ok=True)
            for entry in wanted:
                _write(content, entry, folder)
    except _BROKEN as error:
        raise ConfigError("", f"{archive} is no whole ZIP archive ({error}); remove it and fetch it again") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError("", f"{folder} has no room for what is in {archive.name}") from None
    for inner in sorted(folder.rglob("*.zip")):
        if within <= 1:
            raise ConfigError("", f"{archive} holds archives in archives, deeper than {_DEEPEST}")
        unpack(inner, inner.with_suffix(inner.suffix + ".unpacked"), within - 1)
        _move_up(inner.with_suffix(inner.suffix + ".unpacked"), inner.parent)
        inner.unlink()


def leads_out(name: str) -> bool:
    """Whether a name that somebody else gave a file is none below the folder it is to be put in."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts


def _check(entry: zipfile.ZipInfo, archive: Path) -> None:
    name = entry.filename
    if leads_out(name):
        raise ConfigError("", f"{archive}: {name!r} leads out of the folder it is unpacked to; nothing was unpacked")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ConfigError("", f"{archive}: {name!r} is a link or a special file; nothing was unpacked")


def _write(content: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    path = folder.joinpath(*PurePosixPath(entry.filename).parts)
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with content.open(entry) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def _move_up(folder: Path, into: Path) -> None:
    """Give what is in a folder the place beside it; folders that are there already are filled."""
    for path in sorted(folder.rglob("*")):
        target = into / path.relative_to(folder)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif path.is_file():
            path.replace(target)
    shutil.rmtree(folder)
