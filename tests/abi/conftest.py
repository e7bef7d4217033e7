# SPDX-License-Identifier: Apache-2.0
"""The programs of a build ($LIBCACHE_BUILD, else build), and servers that end with their test."""
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
WATCHDOG_SECONDS = 120
OURS = ("LIBCACHE_", "MS_CACHE_", "SESSION_ID", "LD_LIBRARY_PATH")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(OURS) or name == "LIBCACHE_TEST_RUN"}
sys.path.insert(0, str(HERE))


def run(*words, **environment):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=WATCHDOG_SECONDS, check=False,
                          stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **{k: str(v) for k, v in environment.items()}})


def listens(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@pytest.fixture
def serve():
    """serve(program) starts it in the foreground and returns its LIBCACHE_DIR once it listens."""
    servers = []
    with tempfile.TemporaryDirectory(prefix="lca-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes

        def start(program):
            log = open(Path(folder) / "log", "w")  # closed with its server, below
            server = subprocess.Popen([str(program), "--foreground"], env={**ENVIRONMENT, "LIBCACHE_DIR": f"{folder}/d"},
                                      stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            servers.append((server, log))
            deadline = time.monotonic() + WATCHDOG_SECONDS
            while not any(listens(path) for path in Path(folder).glob("d/cache_server.*")):
                assert server.poll() is None and time.monotonic() < deadline, (Path(folder) / "log").read_text()
                time.sleep(0.01)
            return f"{folder}/d"

        yield start
        for server, log in servers:
            server.terminate()
            server.wait(WATCHDOG_SECONDS)
            log.close()
