# SPDX-License-Identifier: Apache-2.0
"""What every test of the command line gets: the programs of a build ($LIBCACHE_BUILD, else build), a folder and a port
of its own, and the promise that whatever it started has ended when it has.

Nothing here or in the tests waits for a fixed time: what is waited for is looked at again and again until it is so,
with a deadline that only a hang reaches.
"""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / os.environ.get("LIBCACHE_BUILD", "build")
ADMIN = BUILD / "bin" / "cache_admin"
SERVER = BUILD / "bin" / "cache_server"
ROWS = Path(__file__).resolve().parent / "rows.py"
OTHER_USER, THIRD_USER = 61001, 61002  # user ids that need no entry in the password file
WATCHDOG = 60  # seconds until a command that hangs is killed, and until a poll gives up
MARK = "LIBCACHE_TEST_SANDBOX"
OURS = re.compile("^(LIBCACHE_|MS_CACHE_|GLOG_v|SESSION_ID)")  # of the developer's shell: must not reach a test


def pytest_sessionstart(session):
    missing = [str(path) for path in (ADMIN, SERVER) if not path.exists()]
    if missing:
        pytest.exit(f"not built: {', '.join(missing)} (make, or set LIBCACHE_BUILD)", returncode=2)


def wait_until(condition, what):
    """Looks until condition() is true and returns what it gave."""
    deadline = time.monotonic() + WATCHDOG
    while not (result := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {WATCHDOG} s in vain: {what}")
        time.sleep(0.01)
    return result


def is_alive(pid):
    """False also for a process that has ended and that nobody has asked for yet."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


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


class Result:
    """How a command ended."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def __repr__(self):
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"

    def json(self):
        return json.loads(self.out)


class Sandbox:
    """A place where servers run without meeting anybody else's."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="lc-", dir=os.environ.get("TMPDIR", "/tmp")))
        self.directory = self.folder / "d"  # LIBCACHE_DIR: made by the server
        self.port = free_port()
        self.mark = f"{MARK}={uuid.uuid4()}"
        self.pids = set()
        name, _, value = self.mark.partition("=")
        kept = {key: value for key, value in os.environ.items() if not OURS.match(key) or key == "LIBCACHE_TEST_RUN"}
        self.environment = dict(kept, LIBCACHE_DIR=str(self.directory), MS_CACHE_PORT=str(self.port), **{name: value})

    def popen(self, *words, env=None, **options):
        """Starts a command; env adds to or (None) takes away from the sandbox's environment."""
        environment = {**self.environment, **(env or {})}
        environment = {key: value for key, value in environment.items() if value is not None}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([str(word) for word in words], env=environment, text=True, **options)

    def command(self, *words, env=None, **options):
        with self.popen(*words, env=env, **options) as process:
            try:
                out, err = process.communicate(timeout=WATCHDOG)
            except subprocess.TimeoutExpired:
                process.kill()
                self.end_all()  # whoever still holds the pipe
                pytest.fail(f"hangs: {words}")
        self.pids.update(int(pid) for pid in re.findall(r"process id (\d+)", out or ""))
        return Result(process.returncode, out, err)

    def admin(self, *words, env=None, **options):
        return self.command(ADMIN, *words, env=env, **options)

    def start(self, *options, env=None):
        """Starts a server and returns its pid."""
        result = self.admin("--start", *options, env=env)
        assert result.status == 0, result
        return int(re.search(r"process id (\d+)", result.out).group(1))

    @staticmethod
    def as_user(uid):
        return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]

    def needs_user(self, uid):
        """Skips where no other user can be had, or where that user does not reach the programs."""
        if os.geteuid() != 0:
            pytest.skip("needs root, to act as another user")
        if not shutil.which("setpriv") or self.command(*self.as_user(uid), ADMIN, "--version").status != 0:
            pytest.skip(f"user {uid} cannot run {ADMIN} (setpriv missing, or a folder on the way is closed)")

    def give_to(self, uid):
        self.folder.chmod(0o755)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        os.chown(self.directory, uid, uid)

    def lone_admin(self):
        """A cache_admin with its library and without a server program beside it."""
        alone = self.folder / "bin" / "cache_admin"
        for folder in ("bin", "lib"):
            (self.folder / folder).mkdir()
        shutil.copy(ADMIN, alone)
        os.symlink(BUILD / "lib" / "libcache.so.1", self.folder / "lib" / "libcache.so.1")
        return alone

    def session(self, *options):
        result = self.admin("-g", *options)
        assert result.status == 0, result
        return int(result.out.split()[-1])

    def rows_command(self, session, cache, rows, row_bytes, label=""):
        return [sys.executable, ROWS, BUILD, self.port, session, cache, rows, row_bytes, label]

    def put_rows(self, session, cache, rows, row_bytes, label=""):
        """Another process stores rows and ends."""
        result = self.command(*self.rows_command(session, cache, rows, row_bytes, label))
        assert result.status == 0, result

    def hold_rows(self, *what):
        """Another process stores rows and keeps the cache open until communicate() is called."""
        process = self.popen(*self.rows_command(*what), "hold", stdin=subprocess.PIPE)
        assert process.stdout.readline() == "holding\n", process.communicate()
        return process

    def server_runs(self):
        return self.admin("--server_info").status == 0

    def processes(self):
        """Living processes with the sandbox's mark in their environment."""
        found = set()
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and self.mark.encode() in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    found.add(int(entry))
            except OSError:
                pass  # ended meanwhile, or somebody else's
        return {pid for pid in found | self.pids if is_alive(pid)}

    def end_all(self):
        """Asks what is left to end; kills what does not within ten seconds."""
        deadline = time.monotonic() + 10
        asked = set()
        while left := self.processes():
            for pid in left:
                if time.monotonic() > deadline:
                    send(pid, signal.SIGKILL)
                elif pid not in asked:
                    send(pid, signal.SIGTERM)
                    asked.add(pid)
            time.sleep(0.01)

    def close(self):
        self.end_all()
        shutil.rmtree(self.folder, ignore_errors=True)


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


@pytest.fixture
def sandbox():
    place = Sandbox()
    yield place
    place.close()


@pytest.fixture
def served(sandbox):
    """A sandbox in which a server runs."""
    sandbox.start()
    return sandbox
