# SPDX-License-Identifier: Apache-2.0
"""Rows that one language wrote are what every other one reads: each of C, C++, Rust and Python stores MNIST, and each
reads and compares all of it, byte for byte, with the files.

Where the MNIST files are missing ($LIBCACHE_TEST_DATA/mnist), files of the same form are made up, of fewer rows."""
import gzip
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
DATA = Path(os.environ.get("LIBCACHE_TEST_DATA", ROOT.parent / "shared" / "data")) / "mnist"
ADMIN = BUILD / "bin" / "cache_admin"
HANG_SECONDS = 280  # a watchdog, not an expectation
MADE_UP_ROWS = 2000

PROGRAMS = {
    "c": [BUILD / "tests" / "support" / "exchange_c"],
    "cpp": [BUILD / "tests" / "support" / "exchange_cpp"],
    "rust": [BUILD / "tests" / "support" / "exchange_rust"],
    "python": [sys.executable, Path(__file__).with_name("exchange.py")],
}
LANGUAGES = list(PROGRAMS)


def make_up(images, labels):
    source = random.Random(1)
    images.write_bytes(struct.pack(">4I", 0x803, MADE_UP_ROWS, 28, 28) + source.randbytes(MADE_UP_ROWS * 784))
    labels.write_bytes(struct.pack(">2I", 0x801, MADE_UP_ROWS) + bytes(source.choices(range(10), k=MADE_UP_ROWS)))


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """(images, labels, rows): unpacked files."""
    folder = tmp_path_factory.mktemp("mnist")
    images, labels = folder / "images", folder / "labels"
    packed = DATA / "train-images-idx3-ubyte.gz", DATA / "train-labels-idx1-ubyte.gz"
    if all(file.exists() for file in packed):
        for file, unpacked in zip(packed, (images, labels)):
            unpacked.write_bytes(gzip.decompress(file.read_bytes()))
    else:
        make_up(images, labels)
    return images, labels, struct.unpack_from(">I", labels.read_bytes(), 4)[0]


def environment(folder):
    ours = ("LIBCACHE_PORT", "LIBCACHE_SESSION", "MS_CACHE_", "SESSION_ID")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join(filter(None, [str(BUILD / "python"), kept.get("PYTHONPATH")]))
    return {**kept, "LIBCACHE_DIR": folder, "PYTHONPATH": path}


def run(words, env):
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, timeout=HANG_SECONDS,
                          stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def session(mnist):
    """(environment, session id) of a server in which each language that is there has written its cache; the cache's id
    is the language's place in LANGUAGES."""
    with tempfile.TemporaryDirectory(prefix="lcx-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        env = environment(folder)
        env["LIBCACHE_PORT"] = env["MS_CACHE_PORT"] = str(20000 + int.from_bytes(os.urandom(2), "little") % 12000)
        run([ADMIN, "--start"], env)
        try:
            yield env, run([ADMIN, "-g"], env).split()[-1]
        finally:
            run([ADMIN, "--stop"], env)


def program(language):
    path = PROGRAMS[language][-1]
    if not path.exists():
        pytest.skip(f"{path} is not built (make tests)" if language != "rust" else "cargo is not installed (make deps-rust)")
    if language == "python" and not any((BUILD / "python" / "libcache").glob("_rows*.so")):
        pytest.skip("the Python package is not built (make python)")
    return PROGRAMS[language]


written = set()


@pytest.mark.parametrize("reader", LANGUAGES)
@pytest.mark.parametrize("writer", LANGUAGES)
def test_what_one_language_wrote_another_one_reads(session, mnist, writer, reader):
    (env, session_id), (images, labels, rows) = session, mnist
    write, read = program(writer), program(reader)
    where = [session_id, LANGUAGES.index(writer) + 1, images, labels]
    if writer not in written:
        assert run([*write, "write", *where], env) == f"{rows} rows\n"
        written.add(writer)
    assert run([*read, "read", *where], env) == f"{rows} rows\n"


@pytest.mark.parametrize("reader", LANGUAGES)
def test_a_row_that_differs_by_a_bit_is_noticed(session, mnist, tmp_path, reader):
    """The readers do compare: of files in which one pixel is another, the last row is wrong."""
    (env, session_id), (images, labels, rows) = session, mnist
    read = program(reader)
    where = [session_id, 100 + LANGUAGES.index(reader)]
    run([*read, "write", *where, images, labels], env)
    other = tmp_path / "images"
    data = bytearray(images.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    done = subprocess.run([str(word) for word in [*read, "read", *where, other, labels]], env=env, capture_output=True,
                          text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode != 0 and f"ow {rows - 1}" in done.stderr
