"""Files that a command writes under a name the user gave (``--out``).

1. The file is there whole, or not at all.
2. Nothing of anybody else's is overwritten or removed, also if it comes while the command is at work.
3. A second command that writes the same file is refused, and the first one named.
4. What was written is not lost: where it cannot get its name, the command says where it lies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rllib_lmgame.base.errors import ConfigError
from rllib_lmgame.base.lock import LOCK_FILE, locked
from rllib_lmgame.base.storage import expanded

_NO_LINKS = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer."""


@dataclass
class NewFile:
    """A file in the making at ``scratch``; ``path`` is the name it got at the end, maybe another than ``wanted``."""

    scratch: Path
    wanted: Path
    path: Path | None = None

    def status(self) -> int:
        """Exit status of the command that made it; a file that is not there is said."""
        if self.path is None:
            missing = "nothing was written, or somebody removed it meanwhile"
            print(f"error: {self.wanted} could not be written: {missing}", file=sys.stderr)
        return 0 if self.path == self.wanted else 1


def out_path(path: str | Path) -> Path:
    """What ``--out`` names, wherever a game goes meanwhile.

    Raises: ConfigError: It names a user whom nobody knows, or the working directory is gone.
    """
    out = expanded(path)
    if out.parts and out.parts[0].startswith("~"):
        raise ConfigError("--out", f"there is no user {out.parts[0][1:]!r}; write ./{out} for a directory of that name")
    try:
        return out.absolute()
    except OSError as error:
        raise _cannot_be_written(out, error) from None


@contextmanager
def new_file(path: str | Path) -> Iterator[NewFile]:
    """A file to write, which gets its name when the context ends without an error; its directory is made.

    If somebody else takes the name meanwhile, that is printed, and the file gets the next free one (``NAME-2``).

    Raises: ConfigError: There is such a file, another process is writing it, or it cannot be written.
    """
    out = out_path(path)
    with contextlib.ExitStack() as held:
        try:
            if os.path.lexists(out):
                raise ConfigError("--out", f"{out} exists; name another file, or remove it")
            out.parent.mkdir(parents=True, exist_ok=True)
            work = held.enter_context(_work_directory(out))
        except (FileExistsError, NotADirectoryError):
            raise ConfigError("--out", f"{out.parent} is not a directory") from None
        except OSError as error:
            raise _cannot_be_written(out, error) from None
        file = NewFile(work / "written", out)
        try:
            yield file
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        if file.scratch.exists():
            _name(file)
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """An error of the system while something is written for ``out`` (a full disk) becomes a ConfigError about it."""
    try:
        yield
    except OSError as error:
        raise _cannot_be_written(out, error) from None


def _cannot_be_written(out: Path, error: OSError) -> ConfigError:
    return ConfigError("--out", f"{out} cannot be written: {error.strerror or error}")


@contextmanager
def _work_directory(out: Path) -> Iterator[Path]:
    """A directory of this process alone beside ``out``, on the same file system, in one that is locked for ``out``."""
    if len(os.fsencode(out.name)) > os.pathconf(out.parent, "PC_NAME_MAX"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    digest = hashlib.sha256(os.fsencode(out.name)).hexdigest()[:8]
    room = out.with_name(f".{out.name[:40]}-{digest}")
    taken, hint = f"{out} is being written by another process", "name another file, or wait for its end"
    with locked(room, "--out", taken, hint, for_it_alone=True):
        for left in room.iterdir():
            if left.name != LOCK_FILE and any(left.iterdir()):
                print(f"note: a command that wrote {out} and did not end left what it had in {left}", file=sys.stderr)
        yield Path(tempfile.mkdtemp(dir=room))


def _name(file: NewFile) -> None:
    """Give the file its name, or the next free one. Raises: ConfigError: it has to stay where it was written."""
    out = file.wanted
    try:
        with file.scratch.open("rb") as written:
            os.fsync(written.fileno())
        for number in itertools.count(1):
            path = out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
            with contextlib.suppress(FileExistsError):
                _link(file.scratch, path)
                file.path = path
                break
    except OSError as error:
        kept = f"; what was written is in {file.scratch}"
        raise ConfigError("--out", f"{_cannot_be_written(out, error).message}{kept}") from None
    if file.path != out:
        print(f"error: somebody else made {out} meanwhile; what was written here is in {file.path}", file=sys.stderr)


def _link(source: Path, target: Path) -> None:
    """Give ``source`` the name ``target`` too. Raises: FileExistsError: there is one of that name."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.touch(exist_ok=False)
        try:
            source.replace(target)
        except OSError:
            target.unlink()
            raise
