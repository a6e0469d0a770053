"""The system calls a sandboxed program may make, as a seccomp filter.

What is not listed fails with ``EPERM``: sockets, new processes, signals to others, tracing, mounts, namespaces, keys,
shared memory, io_uring, changes of user, group, limits and process flags. Numbers are those of Linux' ``unistd_64.h``
(x86_64) and ``asm-generic/unistd.h`` (aarch64).
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from functools import cache

FULL, READ_ONLY, NO_FILES = "full", "read only", "no files"
"""Profiles: paths may be changed (where namespaces confine them), opened for reading only, or not used at all."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 1, "aarch64": 2}

_PLAIN = """
read:0:63 write:1:64 mmap:9:222 munmap:11:215 brk:12:214 futex:202:98 close:3:57 lseek:8:62 fstat:5:80
clock_gettime:228:113 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 mprotect:10:226 mremap:25:216
madvise:28:233 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 close_range:436:436
poll:7:- ppoll:271:73 select:23:- pselect6:270:72 rt_sigpending:127:136 rt_sigtimedwait:128:137 sigaltstack:131:132
dup:32:23 dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 eventfd2:290:19 epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232:- epoll_pwait:281:22 sched_yield:24:124 sched_getaffinity:204:123 nanosleep:35:101
clock_nanosleep:230:115 clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153 getrusage:98:165 getpid:39:172
gettid:186:178 getppid:110:173 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148
getresgid:120:150 getgroups:115:158 getpgrp:111:- getpgid:121:155 getsid:124:156 uname:63:160 sysinfo:99:179
umask:95:166 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 set_tid_address:218:96 exit:60:93
exit_group:231:94 arch_prctl:158:- getrandom:318:278 getcpu:309:168 membarrier:324:283 alarm:37:- setitimer:38:103
getitimer:36:102 pause:34:- restart_syscall:219:128 ftruncate:77:46 fsync:74:82 fdatasync:75:83 getrlimit:97:163
"""
_PATHS = """
stat:4:- lstat:6:- newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:-
readlinkat:267:78 getcwd:79:17 chdir:80:49 fchdir:81:50 getdents64:217:61 statfs:137:43 fstatfs:138:44
"""
_OPEN = "open:2:- openat:257:56"
_CHANGES = """
mkdir:83:- mkdirat:258:34 unlink:87:- unlinkat:263:35 rmdir:84:- rename:82:- renameat:264:38 renameat2:316:276 link:86:-
linkat:265:37 symlink:88:- symlinkat:266:36 truncate:76:45 fallocate:285:47 chmod:90:- fchmod:91:52 fchmodat:268:53
utimensat:280:88 sendfile:40:71 copy_file_range:326:285
"""
_SPECIAL = "clone:56:220 clone3:435:435 ioctl:16:29 prlimit64:302:261 fcntl:72:25"

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGS = 0, 4, 16
_CLONE_THREAD = 0x10000
_IOCTLS = (0x5401, 0x5421, 0x541B, 0x5450, 0x5451)
"""Requests that are allowed: TCGETS, FIONBIO, FIONREAD, FIONCLEX and FIOCLEX."""
_SIGNALLING_FCNTLS = (8, 10, 15)
"""F_SETOWN, F_SETSIG and F_SETOWN_EX choose a process to be signalled."""
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000 | 0o20000000
"""O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, the bit of O_TMPFILE."""

Instruction = tuple[int, int, int, int]


def machine() -> str | None:
    """``x86_64`` or ``aarch64`` where a filter can be made, else ``None``."""
    name = platform.machine()
    return name if sys.platform == "linux" and sys.maxsize > 2**32 and name in _AUDIT_ARCH else None


@cache
def seccomp_filter(profile: str) -> bytes:
    """A profile as an array of the kernel's ``struct sock_filter``; empty on a machine it is not written for."""
    name = machine()
    if name is None:
        return b""
    special = _numbers(_SPECIAL, name)
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[name]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in _plain_numbers(profile, name):
        program += _case(number, [(_RETURN, 0, 0, _ALLOW)])
    program += _case(
        special["clone"], [(_LOAD, 0, 0, _low(0)), (_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW), _refuse()]
    )
    program += _case(special["clone3"], [_refuse(errno.ENOSYS)])
    harmless = [step for code in _IOCTLS for step in ((_EQUAL, 0, 1, code), (_RETURN, 0, 0, _ALLOW))]
    program += _case(special["ioctl"], [(_LOAD, 0, 0, _low(1)), *harmless, _refuse(errno.ENOTTY)])
    reads_limit = [
        (_LOAD, 0, 0, _low(2)),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _low(2) + 4),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        _refuse(),
    ]
    program += _case(special["prlimit64"], reads_limit)
    no_signals = [step for code in _SIGNALLING_FCNTLS for step in ((_EQUAL, 0, 1, code), _refuse())]
    program += _case(special["fcntl"], [(_LOAD, 0, 0, _low(1)), *no_signals, (_RETURN, 0, 0, _ALLOW)])
    if profile == READ_ONLY:
        for call, number in _numbers(_OPEN, name).items():
            flags = _low(1 if call == "open" else 2)
            program += _case(
                number, [(_LOAD, 0, 0, flags), (_ANY_BIT, 0, 1, _WRITING), _refuse(), (_RETURN, 0, 0, _ALLOW)]
            )
    program.append(_refuse())
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _plain_numbers(profile: str, name: str) -> list[int]:
    """Calls that are allowed whatever their arguments."""
    tables = {NO_FILES: (_PLAIN,), READ_ONLY: (_PLAIN, _PATHS), FULL: (_PLAIN, _OPEN, _PATHS, _CHANGES)}[profile]
    return [number for table in tables for number in _numbers(table, name).values()]


def _numbers(table: str, name: str) -> dict[str, int]:
    rows = [entry.split(":") for entry in table.split()]
    return {row[0]: int(row[_COLUMN[name]]) for row in rows if row[_COLUMN[name]] != "-"}


def _case(number: int, steps: list[Instruction]) -> list[Instruction]:
    """``steps``, which end in a return, if the call is ``number``."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _refuse(code: int = errno.EPERM) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)


def _low(argument: int) -> int:
    """Offset of the lower half of an argument (both machines are little-endian)."""
    return _ARGS + 8 * argument
