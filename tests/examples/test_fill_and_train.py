# SPDX-License-Identifier: Apache-2.0
"""fill_and_train in each language: capi/examples, bindings/*/examples. What all of them promise is tested here once;
what only the one in C is used for (compiling it as its reader would, a session dropped in mid-epoch) in test_demo.py."""
import os
import subprocess
import sys

import pytest
from test_demo import BUILD, HANG_SECONDS, ROOT, admin, compiled, files, folder, train  # noqa: F401 (fixtures)

BUILT = {"cpp": BUILD / "examples" / "cpp_fill_and_train", "rust": BUILD / "examples" / "rust_fill_and_train"}
PYTHON = ROOT / "bindings" / "python" / "examples" / "fill_and_train.py"


@pytest.fixture(params=["c", "cpp", "rust", "python"])
def program(request, compiled, tmp_path):  # noqa: F811
    if request.param == "c":
        return compiled("fill_and_train")
    if request.param == "python":
        if not any((BUILD / "python" / "libcache").glob("_rows*.so")):
            pytest.skip("the Python package is not built (make python)")
        start = tmp_path / "fill_and_train"  # a program of one word, as the others are
        start.write_text(f'#!/bin/sh\nPYTHONPATH="{BUILD / "python"}" exec "{sys.executable}" "{PYTHON}" "$@"\n')
        start.chmod(0o755)
        return start
    if not BUILT[request.param].exists():
        pytest.skip(f"{BUILT[request.param]} is not built (make {request.param})")
    return BUILT[request.param]


def test_each_file_is_read_once(program, admin, files):  # noqa: F811
    directory, total = files
    admin("--start")
    assert train(program, admin, directory) == ([(0, 40, total), (40, 0, total), (40, 0, total)], "")
    assert train(program, admin, directory, epochs=1) == ([(40, 0, total)], "")  # another process finds all rows
    (directory / "000").write_bytes(b"\x01")
    assert train(program, admin, directory, epochs=1) == ([(0, 40, total + 1)], "")  # and none after a change


def test_a_full_cache_gives_what_it_has(program, admin, files):  # noqa: F811
    directory, total = files
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    admin("--start", "-r", f"{12e6 / memory:.9f}")
    epochs, errors = train(program, admin, directory)
    assert all(hits + misses == 40 and sum == total for hits, misses, sum in epochs)
    assert 0 < epochs[1][0] == epochs[2][0] < 40
    assert errors.count("the rest is read from the disk") == 1


def test_it_goes_on_without_a_server(program, admin, files):  # noqa: F811
    directory, total = files
    epochs, errors = train(program, admin, directory, epochs=2)
    assert epochs == [(0, 40, total)] * 2
    assert errors.endswith("going on without a cache\n")


def test_processes_share_the_work_of_the_first_epoch(program, admin, files):  # noqa: F811
    directory, total = files
    admin("--start")
    done = subprocess.run([program, directory, "2", "3"], env=admin.env, capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = sorted(done.stdout.splitlines())
    assert len(lines) == 6 and all(line.endswith(f" sum {total}") for line in lines)
    # Every row was put by somebody in the first epoch, so in the second one nobody goes to the disk.
    second = [line for line in lines if line.startswith("epoch 2: ")]
    assert second == [f"epoch 2: 40 rows from the cache, 0 from the disk, sum {total}"] * 3


def test_a_missing_directory_ends_it_with_a_word(program, admin, tmp_path):  # noqa: F811
    done = subprocess.run([program, tmp_path / "nowhere"], env=admin.env, capture_output=True, text=True,
                          timeout=HANG_SECONDS, check=False)
    assert done.returncode > 0 and "nowhere" in done.stderr  # less than 0: aborted


def test_help_and_wrong_arguments_are_told_before_anything_is_read(program, admin):  # noqa: F811
    def run(*words):
        done = subprocess.run([program, *words], env=admin.env, capture_output=True, text=True, timeout=HANG_SECONDS,
                              check=False)
        return done.returncode, done.stdout, done.stderr
    status, told, errors = run("--help")
    assert (status, errors) == (0, "") and told.startswith("usage: ")
    assert all(word in told for word in ("DIRECTORY", "EPOCHS", "PROCESSES", "unless given"))
    for words, wrong in ((["--nonsense", "."], "--nonsense"), ([".", "x"], "EPOCHS"), ([".", "0"], "EPOCHS"),
                         ([".", "1", "0"], "PROCESSES"), ([".", "1", "1", "1", "1"], "usage")):
        status, told, errors = run(*words)
        assert (status, told) == (2, "") and errors.startswith("usage: ") and wrong in errors, words
        assert "without a cache" not in errors, words


def test_a_file_that_goes_away_ends_it_with_its_name(program, admin, files):  # noqa: F811
    directory, _ = files  # no server: each epoch reads the files themselves
    with subprocess.Popen([program, directory, "1000000000"], env=admin.env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout.readline().startswith("epoch 1: 0 rows")
            (directory / "007").unlink()
            _, told = running.communicate(timeout=HANG_SECONDS)
        finally:
            running.kill()
    assert running.returncode == 1
    _, last = told.splitlines()  # after the one about the server: no traceback, no panic
    assert "007" in last and "No such file" in last
