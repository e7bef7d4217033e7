# SPDX-License-Identifier: Apache-2.0
"""What a row costs, in instructions (valgrind) and system calls (strace): both repeatable where time is not.

perf/row_calls stores rows and reads them as often as it is told; what a longer run has beyond a shorter one is what
its rows cost, the loop of the program included."""
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("LIBCACHE_BUILD", "build")).resolve()

# Instructions a row of 788 bytes may take, some 15 % above what was measured when they were set. Lower them when the
# code got faster; raise them only with the reason beside them. Copies are in put and gather; put goes beyond the first
# index level, and 60 of it fetch lines ahead, which halve its time.
MOST_INSTRUCTIONS = {"get": 95, "batch": 118, "gather": 360, "put": 960}
ROWS = 4000


def run_counted(folder, counter, what, rows, passes):
    """What row_calls does, under `counter`, with a server of its own."""
    environment = dict(os.environ, LIBCACHE_DIR=str(folder / "server"))
    command = " ".join([*counter, f'{BUILD}/perf/row_calls "$LIBCACHE_SESSION" {what} {rows} {passes}'])
    done = subprocess.run([BUILD / "bin/cache_admin", "--run", "--", "sh", "-c", command], env=environment,
                          capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def instructions(folder, what, rows, passes):
    words = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    return int(re.search(r"I +refs: +([\d,]+)", run_counted(folder, words, what, rows, passes))[1].replace(",", ""))


def system_calls(folder, what, rows, passes):
    summary = folder / f"{what}.{passes}"
    run_counted(folder, ["strace", "-f", "-c", "-o", str(summary)], what, rows, passes)
    return int(next(line.split()[3 if line.split()[3].isdigit() else 2] for line in summary.read_text().splitlines()
                    if line.endswith("total")))


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("what", MOST_INSTRUCTIONS)
def test_a_row_takes_no_more_instructions_than_it_may(tmp_path, what):
    if what == "put":
        more, fewer = (instructions(tmp_path, "get", rows, 0) for rows in (3 * ROWS, ROWS))
    else:
        more, fewer = (instructions(tmp_path, what, ROWS, passes) for passes in (3, 1))
    cost = (more - fewer) / (2 * ROWS)
    print(f"{what}: {cost:.1f} instructions a row")
    assert 10 < cost <= MOST_INSTRUCTIONS[what], f"{what} takes {cost:.1f} instructions a row"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("what", ["get", "batch", "gather"])
def test_reading_makes_no_system_call(tmp_path, what):
    # 12,000 rows. Storing them waits for the server a few times more or less often; one call in each batch of 64 would
    # be 187.
    more, fewer = (system_calls(tmp_path, what, ROWS, passes) for passes in (4, 1))
    assert more - fewer < 60, f"{3 * ROWS} rows by {what} made {more - fewer} system calls"


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which("objdump") is None,
                    reason="needs x86-64 and objdump")
def test_a_put_fetches_the_lines_of_later_rows():
    # gcc once dropped the calls of a function that did nothing but prefetch, and nobody noticed: put took twice as long.
    library = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", BUILD / "lib/libcache.so.1"],
                             capture_output=True, text=True, check=True).stdout
    place = next(part for part in library.split("\n\n") if "<libcache::Writer::place_usual(" in part.split("\n")[0])
    assert "prefetchw" in place or re.search(r"(call|jmp) .*Writer::prefetch_ahead", place), place
