# SPDX-License-Identifier: Apache-2.0
"""What is told to the user without an exception: warnings at the user's own line, and each once per node."""
from __future__ import annotations

import fcntl
import os
import sys
import warnings

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LOADER = os.path.join(os.sep, "torch", "utils", "data", "")  # DataLoader's frames lie between us and the user


def warn(message: str) -> None:
    """A RuntimeWarning that shows the line of the program that called into libcache, however deep it came from."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and (frame.f_code.co_filename.startswith(_OWN) or
                                        _LOADER in frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def this_process() -> str:
    """What names this process for as long as it lives, and no other one later."""
    return f"{os.getpid()} {_start(os.getpid())}"


def _start(pid: int) -> str:
    """When a process was started, in the kernel's ticks; "" if it is no more."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended, its parent has not looked yet


def lives(process: str) -> bool:
    """Whether the process that this_process() named is still there."""
    pid, _, start = process.partition(" ")
    return pid.isdecimal() and start != "" and _start(int(pid)) == start


def first_to_tell(path: str, owner: str, what: str = "") -> bool:
    """Whether nobody has told this yet. The file at `path` tells all processes of this user that it was: by the job of
    `owner`, a process named by this_process(). When that has ended, the next job is told again."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # no folder, hence no way to tell the others
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        teller, _, told = os.pread(file, 200, 0).decode(errors="replace").partition("\n")
        if told == what and lives(teller):
            return False
        os.ftruncate(file, 0)
        os.pwrite(file, f"{owner}\n{what}".encode(), 0)
    except OSError:
        pass
    finally:
        os.close(file)
    return True
