# SPDX-License-Identifier: Apache-2.0
"""What the packages are made of and tried in: the programs of a build ($LIBCACHE_BUILD, else build), a copy of the system
that may be changed, and a server that ends with its test."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
WATCHDOG_SECONDS = 280
OURS = ("LIBCACHE_", "MS_CACHE_", "SESSION_ID", "MAKE", "MFLAGS", "PYTHONPATH", "LD_LIBRARY_PATH", "PKG_CONFIG")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(OURS) or name == "LIBCACHE_TEST_RUN"}


def pytest_sessionstart(session):
    missing = [str(path) for path in (BUILD / "bin" / "cache_admin", BUILD / "bin" / "cache_server") if not path.exists()]
    if missing:
        pytest.exit(f"not built: {', '.join(missing)} (make, or set LIBCACHE_BUILD)", returncode=2)


def run(*words, environment=None, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=WATCHDOG_SECONDS, check=False,
                          stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **(environment or {})}, **options)


def must_run(*words, **options):
    done = run(*words, **options)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


def make(*words, root=ROOT, build=BUILD, environment=None):
    """make, with the programs of the build as they are: what is being edited meanwhile is not built."""
    return must_run("make", "-s", "-o", "all", f"BUILD={build}", *words, cwd=root, environment=environment)


def needs(*tools):
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture
def server_folder():
    """A LIBCACHE_DIR. Short: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lcp-", dir="/tmp") as folder:
        yield folder
