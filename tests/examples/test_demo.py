# SPDX-License-Identifier: Apache-2.0
"""The programs of capi/examples, run as a newcomer runs them, and interrupted as one interrupts them.

Binaries come from $LIBCACHE_BUILD (default: build). Each test has a LIBCACHE_DIR of its own and fails if a process that
was started with it, or a socket in it, is left at its end.
"""

import gzip
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
DEMO = BUILD / "bin" / "mnist_demo"
ADMIN = BUILD / "bin" / "cache_admin"
HANG_SECONDS = 120  # a watchdog, not an expectation


# ---- what is left behind -------------------------------------------------------------------------


def processes_of(folder):
    """The processes that were started with this LIBCACHE_DIR: {pid: command line}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"LIBCACHE_DIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            pass  # it has ended meanwhile, or is another user's
    return found


def wait_until(condition, what):
    deadline = time.monotonic() + HANG_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.0005)
    return value


@pytest.fixture
def folder():
    """A LIBCACHE_DIR, in which nothing may live when the test is over."""
    path = tempfile.mkdtemp(prefix="lc-", dir="/tmp")  # short: a socket's path has at most 107 bytes
    yield path
    deadline = time.monotonic() + 10  # a server that has answered its stop is on its last instructions
    while (processes := processes_of(path)) and time.monotonic() < deadline:
        time.sleep(0.001)
    sockets = [str(file) for file in pathlib.Path(path).rglob("*") if file.is_socket()]
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path)
    assert not processes and not sockets


def environment(folder, **more):
    ours = ("LIBCACHE_", "MS_CACHE_", "MNIST_")
    rest = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**rest, "LIBCACHE_DIR": folder, **more}


def sanitizer_options():
    """What a program must be compiled with to run with the libcache.so of this build."""
    library = (BUILD / "lib" / "libcache.so").read_bytes()
    marks = {b"__asan_init": "-fsanitize=address,undefined", b"__tsan_init": "-fsanitize=thread"}
    return [option for mark, option in marks.items() if mark in library]


# ---- the demo: rows ------------------------------------------------------------------------------


def run_demo(folder, *options, **env):
    return subprocess.run(
        [DEMO, *map(str, options)],
        env=environment(folder, **env),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def number(text):
    return int(text.replace(",", ""))


def table_of(output):
    """{phase: {rows, bytes, messages, call}} from the demo's table."""
    line = r"^(write|epoch \d+) +(cache_\w+) +(\d*) +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+) +([\d,]+)$"
    return {
        match[1]: {"call": match[2], "rows": number(match[4]), "bytes": number(match[5]), "messages": number(match[8])}
        for match in re.finditer(line, output, re.MULTILINE)
    }


def assert_all_right(done, rows, epochs, row_bytes=788):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is for terminals
    table = table_of(done.stdout)
    assert list(table) == ["write"] + [f"epoch {epoch + 1}" for epoch in range(epochs)]
    for phase in table.values():
        assert (phase["rows"], phase["bytes"]) == (rows, rows * row_bytes)
    assert "Listing sessions for server on port" in done.stdout
    assert f"All {rows * epochs:,} rows read were right, byte for byte." in done.stdout
    return table


def test_generated_rows_come_back_in_every_epoch_and_by_every_call(folder):
    done = run_demo(folder, "--generate", "--rows", 1000, "--epochs", 4)
    table = assert_all_right(done, rows=1000, epochs=4)
    assert "generated" in done.stdout.splitlines()[0]
    assert [phase["call"] for phase in table.values()] == [
        "cache_put", "cache_get", "cache_get_batch", "cache_gather", "cache_get"]  # fmt: skip


def test_no_message_to_the_server_is_about_a_row(folder):
    few = assert_all_right(run_demo(folder, "--generate", "--rows", 2000), rows=2000, epochs=3)
    many = assert_all_right(run_demo(folder, "--generate", "--rows", 20000), rows=20000, epochs=3)
    for phase in ("epoch 1", "epoch 2", "epoch 3"):
        assert many[phase]["messages"] == few[phase]["messages"]
    assert many["epoch 2"]["messages"] == many["epoch 3"]["messages"] == 0
    assert many["write"]["messages"] < 100


DIVISIONS = [(1, 1, 1, 64), (5, 3, 101, 7), (8, 8, 4, 1), (2, 2, 500, 9999)]


@pytest.mark.parametrize("loaders, readers, rows, batch", DIVISIONS)
def test_any_division_of_the_work_reads_each_row_once(folder, loaders, readers, rows, batch):
    done = run_demo(folder, "--generate", "--loaders", loaders, "--readers", readers, "--rows", rows, "--batch", batch)
    assert_all_right(done, rows=rows, epochs=3)


def idx(shape, data):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + data


def write_mnist(where, rows=300, height=28, width=28, pack=bytes, suffix=""):
    """Random pictures as IDX files; returns their folder."""
    source = random.Random(7)
    where.mkdir()
    (where / f"train-images-idx3-ubyte{suffix}").write_bytes(
        pack(idx([rows, height, width], source.randbytes(rows * height * width))))  # fmt: skip
    (where / f"train-labels-idx1-ubyte{suffix}").write_bytes(pack(idx([rows], source.randbytes(rows))))
    return where


def test_plain_files_are_found_by_option(folder, tmp_path):
    done = run_demo(folder, "--data", write_mnist(tmp_path / "plain"))
    assert_all_right(done, rows=300, epochs=3)
    assert f"{tmp_path}/plain, plain IDX" in done.stdout


def test_gzip_files_are_found_by_environment(folder, tmp_path):
    done = run_demo(folder, MNIST_DIR=str(write_mnist(tmp_path / "packed", pack=gzip.compress, suffix=".gz")))
    assert_all_right(done, rows=300, epochs=3)
    assert f"{tmp_path}/packed, IDX in gzip" in done.stdout


def test_pictures_of_another_size_are_taken_as_they_are(folder, tmp_path):
    done = run_demo(folder, "--data", write_mnist(tmp_path / "small", height=5, width=3))
    assert_all_right(done, rows=300, epochs=3, row_bytes=5 * 3 + 4)


def test_all_of_mnist(folder):
    places = [os.environ.get("LIBCACHE_TEST_DATA", ""), str(ROOT.parent / "shared" / "data")]
    mnist = next((path for place in places if place and (path := pathlib.Path(place) / "mnist").is_dir()), None)
    if mnist is None:
        pytest.skip("MNIST is neither in $LIBCACHE_TEST_DATA nor in ../shared/data")
    assert_all_right(run_demo(folder, MNIST_DIR=str(mnist)), rows=60000, epochs=3)


def test_progress_is_drawn_on_a_terminal(folder):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [DEMO, "--generate", "--rows", "5000"],
        env=environment(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=HANG_SECONDS,
    )
    os.close(theirs)
    drawn = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == 0
    assert re.search(r"\rwrite +\[[# ]{30}\] [\d,]+ of 5,000 rows", drawn)
    assert drawn.endswith("\r\x1b[K")


# ---- the demo: a cache that is wrong ----------------------------------------------------------------

FAULTY_PUT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libcache.h>
#include <stdlib.h>
int cache_put(cache *rows, int64_t row, const cache_column *columns, uint32_t n)
{
    int (*put)(cache *, int64_t, const cache_column *, uint32_t) = dlsym(RTLD_NEXT, "cache_put");
    int fault = atoi(getenv("FAULT"));
    if (row == 1234 && fault == 0) ((unsigned char *)columns[0].data)[700] ^= 1;
    if (row == 1234 && fault == 1) ((unsigned char *)columns[1].data)[0] ^= 16;
    if (row == 1234 && fault == 2) return 0;
    return put(rows, row, columns, n);
}
"""
FAULTS = [
    r"reader [12]: row 1234, image, byte 700: \d+ in the cache, \d+ in the source",
    r"reader [12]: row 1234, label: \d+ in the cache, \d in the source",
    "the cache holds 1,999 rows after 2,000 were put",
]


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_a_single_wrong_bit_is_found_and_ends_the_demo_with_1(folder, tmp_path, fault):
    if sanitizer_options():
        pytest.skip("a sanitizer wants to be loaded first")
    (tmp_path / "put.c").write_text(FAULTY_PUT)
    library = tmp_path / "put.so"
    subprocess.run(["gcc", "-shared", "-fPIC", f"-I{ROOT / 'capi'}", tmp_path / "put.c", "-o", library], check=True)
    done = run_demo(folder, "--generate", "--rows", 2000, LD_PRELOAD=str(library), FAULT=str(fault))
    assert done.returncode == 1
    assert "were right" not in done.stdout
    assert re.search(FAULTS[fault], done.stderr)


# ---- the demo: bad input -------------------------------------------------------------------------


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
WHOLE = 16 + 300 * 784
SPOIL_PLAIN = {
    "truncated": (IMAGES, lambda data: data[:1000], f"byte 1000: the file ends here, but must have {WHOLE} bytes"),
    "one byte short": (IMAGES, lambda data: data[:-1], f"byte {WHOLE - 1}: the file ends here"),
    "too long": (IMAGES, lambda data: data + b"x", f"byte {WHOLE}: the file goes on"),
    "empty": (LABELS, lambda data: b"", "byte 0: the file ends here"),
    "header cut": (LABELS, lambda data: data[:6], "byte 6: the file ends here"),
    "wrong magic": (IMAGES, lambda data: b"\x89PNG" + data[4:], "byte 0: the magic number is 0x89504e47, not 0x0000"),
    "labels for images": (IMAGES, lambda data: idx([300], bytes(300)), "byte 0: the magic number is 0x00000801"),
    "no rows": (LABELS, lambda data: idx([0], b""), "byte 4: an extent is 0"),
    "huge extents": (IMAGES, lambda data: idx([2**32 - 1] * 3, b""), "byte 8: one item would have more than 64 MiB"),
    "huge count": (IMAGES, lambda data: idx([2**32 - 1, 8, 8], b"abc"), "byte 19: the file ends here, but must have"),
    "counts differ": (LABELS, lambda data: idx([299], bytes(299)), f"300 images at byte 4, FOLDER/{LABELS} 299 labels"),
}
SPOIL_GZIP = {
    "cut": (IMAGES, lambda data: data[:100_000], "byte 100000: the gzip data are damaged (unexpected end of file)"),
    "check sum": (IMAGES, lambda data: flip(data, -8), "the gzip data are damaged (incorrect data check)"),
    "header": (IMAGES, lambda data: flip(data, 2), "the gzip data are damaged (unknown compression method)"),
    "no gzip": (IMAGES, gzip.decompress, "byte 0: not gzip data, although"),
}


def assert_named_with_position(folder, data, file, spoil, message):
    file.write_bytes(spoil(file.read_bytes()))
    done = run_demo(folder, "--data", data)
    assert (done.returncode, done.stdout) == (1, "")
    assert str(file) in done.stderr
    assert message.replace("FOLDER", str(data)) in done.stderr


@pytest.mark.parametrize("damage", SPOIL_PLAIN)
def test_a_damaged_file_is_named_with_the_position(folder, tmp_path, damage):
    name, spoil, message = SPOIL_PLAIN[damage]
    data = write_mnist(tmp_path / "data")
    assert_named_with_position(folder, data, data / name, spoil, message)


@pytest.mark.parametrize("damage", SPOIL_GZIP)
def test_a_damaged_gzip_file_is_named_with_the_position(folder, tmp_path, damage):
    name, spoil, message = SPOIL_GZIP[damage]
    data = write_mnist(tmp_path / "data", pack=gzip.compress, suffix=".gz")
    assert_named_with_position(folder, data, data / f"{name}.gz", spoil, message)


def test_a_file_that_is_not_there_is_named_with_its_folder(folder, tmp_path):
    data = write_mnist(tmp_path / "data")
    (data / LABELS).unlink()
    for done in (run_demo(folder, "--data", data), run_demo(folder, MNIST_DIR=str(data))):
        assert done.returncode == 1
        assert f"{data}: neither {LABELS} nor {LABELS}.gz is there" in done.stderr


@pytest.mark.parametrize("options", [["--loaders", "0"], ["--rows", "-1"], ["--epochs", "x"], ["--nonsense"]])
def test_a_wrong_option_is_refused_before_anything_starts(folder, options):
    done = run_demo(folder, *options)
    assert done.returncode != 0
    assert options[0] in done.stderr


# ---- the demo: interrupted -----------------------------------------------------------------------


class Running:
    """The demo in a process group of its own, with more epochs than anybody waits for."""

    def __init__(self, folder, *options):
        self.folder = folder
        self.process = subprocess.Popen(
            [DEMO, "--generate", *map(str, options)],
            env=environment(folder),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_line(self, start):
        while not (line := self.process.stdout.readline()).startswith(start):
            assert line, self.process.stderr.read()

    def workers(self):
        """The demo's own forks, not what it executes."""
        return [
            pid
            for pid, command in processes_of(self.folder).items()
            if pid != self.process.pid and command.startswith(str(DEMO))
        ]

    def end(self):
        output, errors = self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode, output, errors


ENDLESS = ["--rows", 2000, "--epochs", 1_000_000]


@pytest.mark.parametrize("phase", ["cache server", "epoch 1 "])
def test_ctrl_c_leaves_nothing_behind(folder, phase):
    demo = Running(folder, *ENDLESS)
    demo.wait_for_line(phase)
    os.killpg(demo.process.pid, signal.SIGINT)
    status, _, errors = demo.end()
    assert (status, errors) == (-signal.SIGINT, "mnist_demo: ended by signal 2 (Interrupt)\n")


def test_ctrl_c_while_the_server_starts_leaves_nothing_behind(folder):
    demo = Running(folder, *ENDLESS)
    wait_until(lambda: any(str(ADMIN.parent) in command and str(DEMO) not in command
                           for command in processes_of(folder).values()), "the start of a server")  # fmt: skip
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.end()[0] == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_parent_alone_leaves_nothing_behind(folder, number):
    demo = Running(folder, *ENDLESS)
    demo.wait_for_line("epoch 2 ")
    os.kill(demo.process.pid, number)
    assert demo.end()[0] == -number


def test_a_reader_that_is_killed_is_reported(folder):
    demo = Running(folder, *ENDLESS)
    demo.wait_for_line("epoch 1 ")
    victim = demo.workers()[0]
    os.kill(victim, signal.SIGKILL)
    status, _, errors = demo.end()
    assert status == 1
    assert re.fullmatch(rf"mnist_demo: reader \d: its process {victim} was killed by signal 9 \(Killed\)\n", errors)


def test_a_loader_that_is_killed_is_reported(folder):
    for _ in range(50):  # a loader lives for milliseconds: the kill may come too late
        demo = Running(folder, "--rows", 60000, "--epochs", 1, "--loaders", 1)
        demo.wait_for_line("phase ")
        for victim in wait_until(lambda: demo.workers() or demo.process.poll() is not None and [0], "a loader")[:1]:
            if victim:
                os.kill(victim, signal.SIGKILL)
        status, _, errors = demo.end()
        assert not processes_of(folder)
        if "loader" in errors:
            break
    assert status == 1
    assert re.fullmatch(rf"mnist_demo: loader 1: its process {victim} was killed by signal 9 \(Killed\)\n", errors)


def test_a_reader_of_the_output_that_leaves_early_leaves_nothing_behind(folder):
    demo = Running(folder, "--rows", 2000, "--epochs", 3)
    demo.process.stdout.readline()
    demo.process.stdout.close()
    assert demo.process.wait(timeout=HANG_SECONDS) == 1
    assert "cannot write" in demo.process.stderr.read()


# ---- the programs in C ---------------------------------------------------------------------------


@pytest.fixture
def admin(folder):
    """Runs cache_admin against a server that is started on first use and stopped at the end; .port, .env."""

    class Admin:
        started = False

        def __init__(self):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = str(probe.getsockname()[1])
            self.env = environment(folder, LIBCACHE_PORT=self.port, LD_LIBRARY_PATH=str(BUILD / "lib"))

        def __call__(self, *words):
            done = subprocess.run([ADMIN, *words, "-p", self.port], env=self.env, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=HANG_SECONDS)  # fmt: skip
            assert done.returncode == 0, done.stderr
            self.started = self.started or "--start" in words
            return done.stdout

    admin = Admin()
    yield admin
    if admin.started:
        admin("--stop")


@pytest.fixture
def compiled(tmp_path):
    """Compiles an example of capi/examples as its reader would, and gives the program's path."""

    def compile_it(name):
        program = tmp_path / name
        subprocess.run(
            ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", f"-I{ROOT / 'capi'}",
             *sanitizer_options(),
             ROOT / "capi" / "examples" / f"{name}.c", f"-L{BUILD / 'lib'}", "-lcache", "-o", program],
            check=True)  # fmt: skip
        return program

    return compile_it


def test_quickstart_compiles_without_a_warning_and_prints_its_row(admin, compiled):
    program = compiled("quickstart")
    admin("--start")
    for _ in range(2):  # the second time the row is there already
        done = subprocess.run([program], env=admin.env, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert (done.returncode, done.stdout, done.stderr) == (0, "row 42: 2 columns, the image's last byte is 6\n", "")


def test_quickstart_without_a_server_says_so(admin, compiled):
    done = subprocess.run([compiled("quickstart")], env=admin.env, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1
    assert admin.port in done.stderr


@pytest.fixture
def files(tmp_path):
    """40 files of up to 1 MB, one of them empty; .total is the sum of all bytes."""
    source = random.Random(3)
    (tmp_path / "files").mkdir()
    total = 0
    for i in range(40):
        data = source.randbytes(0 if i == 0 else source.randrange(1, 1_000_000))
        (tmp_path / "files" / f"{i:03}").write_bytes(data)
        total += sum(data)
    return tmp_path / "files", total


def train(program, admin, files, epochs=3):
    done = subprocess.run([program, files, str(epochs)], env=admin.env, capture_output=True, text=True,
                          timeout=HANG_SECONDS)  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"epoch \d+: (\d+) rows from the cache, (\d+) from the disk, sum (\d+)\n", done.stdout)
    return [tuple(map(int, line)) for line in lines], done.stderr


def test_fill_and_train_reads_each_file_once(admin, compiled, files):
    program, (directory, total) = compiled("fill_and_train"), files
    admin("--start")
    assert train(program, admin, directory) == ([(0, 40, total), (40, 0, total), (40, 0, total)], "")
    assert train(program, admin, directory, epochs=1) == ([(40, 0, total)], "")  # another process finds all rows
    (directory / "000").write_bytes(b"\x01")
    assert train(program, admin, directory, epochs=1) == ([(0, 40, total + 1)], "")  # and none after a change


def test_fill_and_train_goes_on_when_the_cache_is_full(admin, compiled, files):
    program, (directory, total) = compiled("fill_and_train"), files
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    admin("--start", "-r", f"{12e6 / memory:.9f}")
    epochs, errors = train(program, admin, directory)
    assert all(hits + misses == 40 and sum == total for hits, misses, sum in epochs)
    assert 0 < epochs[1][0] == epochs[2][0] < 40
    assert errors.count("the rest is read from the disk") == 1


def test_fill_and_train_goes_on_when_the_session_is_dropped(admin, compiled, files):
    program, (directory, _) = compiled("fill_and_train"), files
    admin("--start")
    with subprocess.Popen([program, directory, "1000000000"], env=admin.env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as running:  # fmt: skip
        try:
            assert "epoch 1: 0 rows" in running.stdout.readline()
            session = admin("--list_sessions").split("\n")[-2].split()[0]
            admin("-d", session)
            while "40 rows from the cache" in (line := running.stdout.readline()):
                pass
            kept = int(re.match(r"epoch \d+: (\d+) rows from the cache", line)[1])  # until the drop, in mid-epoch
            assert f"{40 - kept} rows from the cache" in running.stdout.readline()  # those that went to the new one
            assert "40 rows from the cache" in running.stdout.readline()
        finally:
            running.kill()
        assert "opening a new cache" in running.stderr.read()


def test_fill_and_train_goes_on_without_a_server(admin, compiled, files):
    program, (directory, total) = compiled("fill_and_train"), files
    epochs, errors = train(program, admin, directory, epochs=2)
    assert epochs == [(0, 40, total)] * 2
    assert errors.endswith("going on without a cache\n")
