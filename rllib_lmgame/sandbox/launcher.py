"""Confines itself, then runs a program: the script at the start of every sandboxed process.

It is run as ``python -I -S launcher.py``. Standard input holds its job (eight bytes of length, then a marshalled
mapping, see :mod:`rllib_lmgame.sandbox.process`), then the program's own. It imports little: every run pays for it.

With namespaces it forks. The first process stays outside, hands on the exit status, and kills the namespace when asked
to end. The second one is the program.
"""

import _signal
import ctypes
import marshal
import os
import sys

NEW_MOUNTS, NEW_CGROUP, NEW_NAMES = 0x20000, 0x2000000, 0x4000000
NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
DETACH = 2
SET_PARENT_DEATH_SIGNAL, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 1, 22, 38
MOUNT_SETATTR, AT_RECURSIVE, AT_CWD = 442, 0x8000, -100
CAPABILITY_VERSION_3 = 0x20080522
NOBODY = 65534
OWN_USERS = 0x70000000
"""Root gives every run a user id of its own from here on, so that runs cannot touch one another."""
SCRATCH_ROOT = "/proc"
"""A directory that exists everywhere and is not needed once the new root is built over it."""
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


def mount(source, target: str, kind, flags: int, data: str = "") -> None:  # type: ignore[no-untyped-def]
    encode = lambda text: text.encode() if text else None  # noqa: E731
    check(
        libc.mount(encode(source), target.encode(), encode(kind), ctypes.c_ulong(flags), encode(data)),
        f"mount {target}",
    )


def enter_namespaces() -> None:
    """New mounts, processes, network, host name and IPC; without root's rights with a user namespace too."""
    flags = NEW_MOUNTS | NEW_CGROUP | NEW_NAMES | NEW_IPC | NEW_PIDS | NEW_NET
    user, group = os.getuid(), os.getgid()
    if user == 0 and libc.unshare(flags) == 0:
        return
    check(libc.unshare(flags | NEW_USER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def bind_read_only(path: str, target: str) -> None:
    """Show ``path`` at ``target``, mounts below it included, unchangeable."""
    mount(path, target, None, BIND | RECURSIVE)
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY | NO_SUID | NO_DEVICES)
    if libc.syscall(MOUNT_SETATTR, AT_CWD, target.encode(), AT_RECURSIVE, attributes, ctypes.sizeof(attributes)) == -1:
        kept = os.statvfs(target).f_flag & (8 | 1024 | 2048)  # noexec, noatime and nodiratime may not be cleared
        mount(None, target, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | kept)


def build_root(job) -> None:  # type: ignore[no-untyped-def]
    """Make a root with the interpreter's libraries, three devices and a temporary directory in memory; live in it."""
    os.umask(0o022)
    mount(None, "/", None, RECURSIVE | PRIVATE)
    root = SCRATCH_ROOT
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    os.mkdir(root + "/tmp")  # before the binds: one of them may lie below it
    mount("tmpfs", root + "/tmp", "tmpfs", NO_SUID | NO_DEVICES, f"size={job['disk']},nr_inodes=1024,mode=1777")
    for path in job["links"]:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.readlink(path), root + path)
    for path in job["binds"]:
        os.makedirs(root + path, exist_ok=True)
        bind_read_only(path, root + path)
    for path in job["masks"]:
        mount("tmpfs", root + path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "size=4k")
    os.mkdir(root + "/dev")
    for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
        os.close(os.open(root + path, os.O_CREAT))
        mount(path, root + path, None, BIND)
    mount(None, root, None, REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(root)
    check(libc.syscall(job["pivot_root"], b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount")
    os.chdir("/tmp")


def fork_inside() -> None:
    """Go on in a child that is the first process of the new namespace; the parent never returns."""
    child = 0

    def end(*_: object) -> None:
        if child:
            os.kill(child, 9)
        else:
            os._exit(1)

    _signal.signal(_signal.SIGTERM, end)
    child = os.fork()
    if not child:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def drop_rights(number: int, keeps_user: bool) -> None:
    """No capabilities and no way to gain any; no user of weight, unless a worker of ours must read the user's files."""
    if os.geteuid() == 0 and not keeps_user:
        for user in (OWN_USERS + number % 2**20, NOBODY):
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


def set_limits(limits) -> None:  # type: ignore[no-untyped-def]
    """Resource limits, by the names of the module ``resource``."""
    import resource

    for name, value in limits.items():
        try:
            kind = getattr(resource, name)
            _, most = resource.getrlimit(kind)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))
        except (AttributeError, ValueError, OSError):
            if name in ("RLIMIT_AS", "RLIMIT_CPU") and sys.platform == "linux":
                raise


def set_filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    check(
        libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(Program(len(program) // 8, program)), 0, 0), "seccomp"
    )


def confine(job) -> None:  # type: ignore[no-untyped-def]
    """Everything above, in the order in which each step still has the rights it needs."""
    number = os.getpid()
    linux = sys.platform == "linux"
    if job["dies_with_parent"] and linux:
        libc.prctl(SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(9), 0, 0, 0)
    set_limits({"RLIMIT_CORE": 0})
    if job["namespaces"]:
        enter_namespaces()
        fork_inside()
        build_root(job)
    for name in job["preload"]:
        __import__(name)
    if linux:
        drop_rights(number, job["keeps_user"])
        if job["namespaces"] or job["dies_with_parent"]:
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
