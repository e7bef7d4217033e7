# SPDX-License-Identifier: Apache-2.0
"""A real server for the tests, on a port and in a folder of its own. The package is the one of $LIBCACHE_BUILD (build
by default), made by `make python`; $LIBCACHE_PYTHON_INSTALLED=1 takes the one that the interpreter finds by itself."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / os.environ.get("LIBCACHE_BUILD", "build")
ADMIN = BUILD / "bin" / "cache_admin"
DATA = Path(os.environ.get("LIBCACHE_TEST_DATA", ROOT.parent / "shared" / "data"))
WATCHDOG = 60  # seconds until something that hangs is killed

if not os.environ.get("LIBCACHE_PYTHON_INSTALLED"):
    sys.path.insert(0, str(BUILD / "python"))
sys.path.insert(0, str(Path(__file__).parent))  # spawned children find what the tests define


def pytest_sessionstart(session):
    missing = [str(path) for path in (ADMIN, BUILD / "bin" / "cache_server") if not path.exists()]
    if missing:
        pytest.exit(f"not built: {', '.join(missing)} (make, or set LIBCACHE_BUILD)", returncode=2)
    try:
        import libcache  # noqa: F401
    except ImportError as error:
        pytest.exit(f"libcache cannot be imported ({error}): make python", returncode=2)


def free_port():
    """A TCP port that nobody has, outside the range from which the kernel gives ports away."""
    while True:
        port = 20000 + int.from_bytes(os.urandom(2), "little") % 12000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def wait_until(condition, what):
    """Looks until condition() is true and returns what it gave."""
    deadline = time.monotonic() + WATCHDOG
    while not (result := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WATCHDOG} s in vain: {what}")
        time.sleep(0.01)
    return result


class Server:
    """A server in a folder of its own; the environment of this process, and so of its children, leads to it."""

    def __init__(self, monkeypatch):
        self.folder = tempfile.mkdtemp(prefix="lcp-", dir=os.environ.get("TMPDIR", "/tmp"))
        self.port = free_port()
        for name in ("LIBCACHE_SESSION", "SESSION_ID", "MS_CACHE_PORT", "MS_CACHE_HOST", "GLOG_v"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LIBCACHE_DIR", self.folder)
        monkeypatch.setenv("LIBCACHE_PORT", str(self.port))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))

    def admin(self, *words):
        return subprocess.run([str(ADMIN), *map(str, words)], capture_output=True, text=True, timeout=WATCHDOG,
                              stdin=subprocess.DEVNULL)

    def start(self, *words):
        result = self.admin("--start", "-p", self.port, *words)
        assert result.returncode == 0, result.stderr
        return self

    def stop(self):
        return self.admin("--stop", "-p", self.port).returncode == 0

    def close(self):
        import libcache
        try:
            info = libcache.Client().server_info()
        except libcache.Error:
            info = None  # none runs
        if info is not None and not self.stop():
            for pid in (info.keeper_pid, info.broker_pid):
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server():
    """A running server, shared by the tests of a module."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        place = Server(monkeypatch)
        try:
            yield place.start()
        finally:
            place.close()


@pytest.fixture
def no_server(monkeypatch):
    """A place where no server runs yet; one that a test starts is stopped."""
    place = Server(monkeypatch)
    yield place
    place.close()


@pytest.fixture
def own_server(no_server):
    """A running server for one test that stops it or counts on being alone."""
    return no_server.start()


@pytest.fixture
def session(server):
    """A session of its own for each test."""
    import libcache
    made = libcache.Client().create_session()
    yield made
    try:
        made.destroy()
    except libcache.NoSession:
        pass


@pytest.fixture
def cache(session):
    """A cache of its own for each test."""
    with session.open(expected_rows=1000) as opened:
        yield opened
