"""Confines itself, then runs a program: the script at the start of every sandboxed process.

It is run as ``python -I -S launcher.py``. Standard input holds its job (eight bytes of length, then a marshalled
mapping, see :mod:`rllib_lmgame.sandbox.process`), then the program's own. It imports little: every run pays for it.
"""

import ctypes
import marshal
import os
import sys

SET_PARENT_DEATH_SIGNAL, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 1, 22, 38
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
OWN_USERS = 0x70000000
"""Root gives every run a user id of its own from here on, so that runs cannot touch one another."""
PROGRAM = "program.py"
MAX_FRAMES = 8

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Turn a C function's -1 into an error that says what failed."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def read_exactly(size: int) -> bytes:
    """Bytes of standard input, none more than asked for."""
    parts = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def drop_rights(keeps_user: bool) -> None:
    """No capabilities and no way to gain any; no user of weight, unless a worker of ours must read the user's files."""
    if os.geteuid() == 0 and not keeps_user:
        for user in (OWN_USERS + os.getpid() % 2**20, NOBODY):
            try:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                break
            except OSError:
                continue
    header, data = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, data)
    check(libc.prctl(SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0), "no_new_privs")


def set_limits(limits) -> None:
    """Resource limits, by the names of the module ``resource``."""
    import resource

    for name, value in limits.items():
        try:
            kind = getattr(resource, name)
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
        except (AttributeError, ValueError, OSError):
            if name in ("RLIMIT_AS", "RLIMIT_CPU"):
                raise


def set_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    check(
        libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(Program(len(program) // 8, program)), 0, 0), "seccomp"
    )


def confine(job) -> None:
    """Everything above, in the order in which each step still has the rights it needs."""
    if job["dies_with_parent"]:
        libc.prctl(SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(9), 0, 0, 0)
    set_limits({"RLIMIT_CORE": 0})
    for name in job["preload"]:
        __import__(name)
    drop_rights(job["keeps_user"])
    if job["dies_with_parent"]:  # A change of user takes this back.
        libc.prctl(SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(9), 0, 0, 0)
    set_limits(job["limits"])
    if job["filter"]:
        set_filter(job["filter"])


def report(error: BaseException, source: str) -> None:
    """The traceback as far as it concerns the program, the same in every mode."""
    lines = source.split("\n")
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == PROGRAM:
            text = lines[trace.tb_lineno - 1].strip() if 0 < trace.tb_lineno <= len(lines) else ""
            frames.append(f"  line {trace.tb_lineno}, in {code.co_name}: {text[:200]}")
            del frames[: -2 * MAX_FRAMES]
        trace = trace.tb_next
    try:
        message = str(error)
    except BaseException:
        message = "(no message)"
    if isinstance(error, SyntaxError):
        message = f"{error.msg} (line {error.lineno})"
    shown = [f"Error at:\n{chr(10).join(frames[-MAX_FRAMES:])}"] if frames else []
    text = "\n".join([*shown, f"{type(error).__name__}: {message[:2000]}"]) + "\n"
    sys.stdout.flush()
    os.write(2, text.encode("utf-8", "backslashreplace"))


def run(source: str) -> None:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = [PROGRAM]
    try:
        exec(compile(source, PROGRAM, "exec", dont_inherit=True), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        report(error, source)
        sys.exit(1)


def main() -> None:
    """Read the job, confine, say so on the status pipe, run."""
    job = marshal.loads(read_exactly(int.from_bytes(read_exactly(8), "little")))
    try:
        confine(job)
    except BaseException as error:
        os.write(job["status"], f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.write(job["status"], b"ready")
    os.close(job["status"])
    run(job["program"])


if __name__ == "__main__":
    main()
