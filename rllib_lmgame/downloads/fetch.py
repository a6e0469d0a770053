"""Fetching a data set.

1. A file has its name only when it is whole and has the size and hash that are known of it.
2. ``SOURCE.json`` says that a part is there only when all its files are.
3. What was fetched before an interruption is not fetched again.
4. A second process that fetches the same set is refused, and the first one named.
5. Nothing is written outside the set's folder.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib.metadata
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from rllib_lmgame.base import json_files
from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.lock import locked
from rllib_lmgame.base.text import size_text
from rllib_lmgame.downloads import hub
from rllib_lmgame.downloads.hub import check_room, download
from rllib_lmgame.downloads.places import PREFIX, SOURCE, Named, named, read_source
from rllib_lmgame.downloads.table import HUB, PACKAGE, Source

Report = Callable[[str], None]
CHUNK = 1 << 20
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
_DEEPEST = 3
"""Archives in archives, at most."""


@dataclass(frozen=True)
class _Item:
    """One file to be had: where, and what it must be."""

    path: str
    get: Callable[[Path], object]
    url: str
    size: int | None = None
    sha256: str | None = None
    unpack: bool = False


@dataclass
class _Record:
    """The content of ``SOURCE.json``, kept up to date on the disk."""

    chosen: Named
    parts: list[str] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, chosen: Named) -> _Record:
        """The record of the set's folder; empty if the file is missing or damaged."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = read_source(chosen.folder)
            files = {path: {key: about[key] for key in ("url", "bytes")} for path, about in said["files"].items()}
            return cls(chosen, list(said["parts"]), files)
        return cls(chosen)

    def add(self, path: str, url: str) -> None:
        self.files[path] = {"url": url, "bytes": (self.chosen.folder / path).stat().st_size}

    def is_whole(self, path: str) -> bool:
        """Whether a file is there in the size it had."""
        file = self.chosen.folder / path
        return path in self.files and file.is_file() and file.stat().st_size == self.files[path]["bytes"]

    def has(self, item: _Item) -> bool:
        """Whether a file is here as it is there; of an archive, all that was in it."""
        of = [path for path, about in self.files.items() if about["url"] == item.url]
        return bool(of) and all(map(self.is_whole, of))

    def write(self) -> None:
        said = {
            "name": self.chosen.name,
            "licence": self.chosen.set.licence,
            "fetched_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "parts": sorted(self.parts),
            "files": self.files,
        }
        json_files.write_json(self.chosen.folder / SOURCE, said, indent=1)


def fetch(name: str, report: Report = print) -> Path:
    """Fetch a data set or a part of it; what is here already stays.

    Args:
        name: ``NAME`` or ``NAME:PART``.
        report: Called with each line of progress.

    Returns: The set's folder.

    Raises: ConfigError: it cannot be had, is not what it should be, does not fit the disk, or another process is at it.
    """
    chosen = named(PREFIX + name, "")
    folder = chosen.folder
    wanted = [chosen.part] if chosen.part else list(chosen.set.parts)
    try:
        with locked(folder, "", f"{folder} is being filled by another process", "wait for its end"):
            record = _Record.read(chosen)
            if set(wanted) <= set(record.parts) and all(map(record.is_whole, record.files)):
                report(f"{name} is here: {folder}")
                return folder
            record.parts = [part for part in record.parts if part not in wanted]
            _take(record, list(_items(chosen, wanted)), report)
            _join(record, wanted)
            record.parts = sorted({*record.parts, *wanted})
            record.write()
    except OSError as error:
        raise ConfigError("", f"{folder} cannot be written: {error.strerror or error}") from None
    report(f"{name} is here now: {folder}")
    return folder


def _take(record: _Record, items: Sequence[_Item], report: Report) -> None:
    """Get the files that are not here yet, one after the other, and note each.

    The room asked for before holds them, and once more those that become one file later.
    """
    joined = {piece for whole, pieces in record.chosen.set.join.items() if record.is_whole(whole) for piece in pieces}
    folder = record.chosen.folder
    for item in items:
        if leads_out(item.path) or item.path == SOURCE:
            why = "leads out of the set's folder" if item.path != SOURCE else "is the set's own"
            raise ConfigError("", f"{item.url}: the name {item.path!r} {why}; nothing was fetched")
    missing = [item for item in items if item.path not in joined and not record.has(item)]
    to_join = {piece for pieces in record.chosen.set.join.values() for piece in pieces} - joined
    needed = sum(item.size or 0 for item in [*missing, *(item for item in items if item.path in to_join)])
    nothing_known = not needed and not record.files and not record.chosen.part
    check_room(folder, record.chosen.set.size if nothing_known else needed, f"data set {record.chosen.name!r}")
    record.write()  # From here on the set is here in part.
    for item in missing:
        report(f"{record.chosen.name}: {item.path}" + (f" ({size_text(item.size)})" if item.size else ""))
        target = folder / item.path
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file got its name before something came between that and the note of it.
        came_whole = target.is_file() and item.size in (None, target.stat().st_size)
        if item.path in record.files or not came_whole:
            item.get(target)
        _check(item, target)
        if item.unpack:
            _unpack(record, item, target)
        else:
            record.add(item.path, item.url)
        record.write()


def _check(item: _Item, file: Path) -> None:
    """Raises: ConfigError: it is not the file that is known; it is removed."""
    if item.sha256 is None:
        return
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    if sha256 != item.sha256:
        file.unlink()
        why = f"is not the file that is known: its SHA-256 is {sha256}, not {item.sha256}"
        raise ConfigError("", f"{item.url} {why}; it was removed, fetch it again")


def _unpack(record: _Record, item: _Item, archive: Path) -> None:
    scratch = archive.with_name(f".{archive.name}.unpacking")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        unpack(archive, scratch)
        for file in sorted(path for path in scratch.rglob("*") if path.is_file()):
            target = archive.parent / file.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
            record.add(target.relative_to(record.chosen.folder).as_posix(), item.url)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    archive.unlink()


def unpack(archive: Path, folder: Path, within: int = _DEEPEST) -> None:
    """Unpack a ZIP archive into a new folder, and the archives in it, which go once they are unpacked.

    Raises: ConfigError: it is damaged, or the disk has not enough room.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            wanted = [entry for entry in content.infolist() if not entry.filename.startswith("__MACOSX/")]
            check_room(folder.parent, sum(entry.file_size for entry in wanted), f"unpacking {archive.name}")
            content.extractall(folder, wanted)  # Writes nothing outside the folder, and makes no links.
    except _BROKEN as error:
        raise ConfigError("", f"{archive} is no whole ZIP archive ({error}); remove it and fetch it again") from None
    for inner in sorted(folder.rglob("*.zip")):
        if within <= 1:
            raise ConfigError("", f"{archive} holds archives in archives, deeper than {_DEEPEST}")
        beside = inner.with_suffix(".unpacked")
        unpack(inner, beside, within - 1)
        shutil.copytree(beside, inner.parent, dirs_exist_ok=True, copy_function=shutil.move)
        shutil.rmtree(beside)
        inner.unlink()


def leads_out(name: str) -> bool:
    """Whether a name that somebody else gave a file is none below the folder it is to be put in."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or not path.parts


def _join(record: _Record, wanted: Iterable[str]) -> None:
    """Make the files that are others laid end to end; those go then."""
    folder, chosen = record.chosen.folder, record.chosen.set
    for whole, pieces in chosen.join.items():
        files = [folder / piece for piece in pieces]
        if not record.is_whole(whole):
            if not any(whole in chosen.parts[part] for part in wanted):
                continue
            part = folder / f"{whole}.part"
            with part.open("wb") as target:
                for file in files:
                    with file.open("rb") as source:
                        shutil.copyfileobj(source, target, CHUNK)
            part.replace(folder / whole)
            record.add(whole, " + ".join(record.files.pop(piece)["url"] for piece in pieces))
            record.write()
        for file in files:
            file.unlink(missing_ok=True)


def _items(chosen: Named, wanted: list[str]) -> Iterator[_Item]:
    """Files of the parts wanted, and those that belong to no part."""
    parts = chosen.set.parts
    others = [pattern for part, patterns in parts.items() if part not in wanted for pattern in patterns]
    own = [pattern for part in wanted for pattern in parts[part]]
    for item in _all_items(chosen, wanted):
        if not _matches(item.path, others) or _matches(item.path, own):
            yield item


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(path, form) for pattern in patterns for form in {pattern, pattern.removeprefix("**/")}
    )


def _all_items(chosen: Named, wanted: list[str]) -> Iterator[_Item]:
    """Files of the sources that hold a part wanted."""
    for source in chosen.set.sources:
        if source.parts and not set(source.parts) & set(wanted):
            continue
        if source.origin.startswith(HUB):
            yield from _of_hub(source)
        elif source.origin.startswith(PACKAGE):
            yield from _of_package(source)
        else:
            yield from _of_web(source)


def _local(source: Source, path: str) -> str:
    return f"{source.below}/{path}" if source.below else path


def _of_hub(source: Source) -> Iterator[_Item]:
    repository = source.origin.removeprefix(HUB)
    hub.check_online(repository)
    commit, there = hub.listing(repository, source.revision)
    found = [file for file in there if any(fnmatch.fnmatchcase(file.rfilename, pattern) for pattern in source.files)]
    exact = [path for path in source.files if "*" not in path]
    missing = [path for path in exact if path not in {file.rfilename for file in found}]
    if missing or not found:
        has = ", ".join(file.rfilename for file in there[:10])
        raise ConfigError("", f"{repository} has no {', '.join(missing or source.files)}; it has {has or 'no files'}")
    for file in found:
        url = hub.address(repository, commit, file.rfilename)
        known = source.sha256.get(file.rfilename, file.lfs and file.lfs.sha256)
        get = partial(download, url, headers=hub.headers(), size=file.size)
        yield _Item(_local(source, file.rfilename), get, url, file.size, known, source.unpack)


def _of_web(source: Source) -> Iterator[_Item]:
    hub.check_online(source.origin)
    for path in source.files:
        url = f"{source.origin}/{path}"
        yield _Item(_local(source, path), partial(download, url), url, None, source.sha256.get(path), source.unpack)


def _of_package(source: Source) -> Iterator[_Item]:
    package = source.origin.removeprefix(PACKAGE)
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("", f"these files come with the package {package}: `pip install {package}` first") from None
    for path in source.files:
        file = Path(str(distribution.locate_file(path)))
        if not file.is_file():
            raise ConfigError("", f"{package} {distribution.version} has no {path}")
        known, size = source.sha256.get(path), file.stat().st_size
        yield _Item(
            _local(source, path),
            partial(shutil.copyfile, file),
            f"{package} {distribution.version}: {path}",
            size,
            known,
        )
