# SPDX-License-Identifier: Apache-2.0
"""The entry points of the wheel: each becomes the program of its name in libcache/bin. Outside of the package, which
takes NumPy to import."""
import os
import sys
from pathlib import Path


def _become(name: str) -> None:
    program = Path(__file__).resolve().parent / "libcache" / "bin" / name
    os.execv(program, [str(program), *sys.argv[1:]])


def cache_admin() -> None:
    _become("cache_admin")


def cache_perf() -> None:
    _become("cache_perf")


def cache_server() -> None:
    _become("cache_server")
