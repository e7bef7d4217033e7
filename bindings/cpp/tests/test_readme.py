# SPDX-License-Identifier: Apache-2.0
"""The C++ in the README compiles, with warnings as errors, with and without exceptions, and runs."""
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
BLOCKS = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "bindings" / "cpp" / "README.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("more", [[], ["-fno-exceptions", "-fno-rtti"]], ids=["exceptions", "no_exceptions"])
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_in_the_readme_compiles(block, more):
    done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wold-style-cast",
                           "-Werror", "-fsyntax-only", f"-I{ROOT / 'capi'}", f"-I{ROOT / 'bindings' / 'cpp'}", *more,
                           "-x", "c++", "-"], input=block, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def test_the_code_in_the_readme_runs_and_says_when_no_server_does(tmp_path):
    program = tmp_path / "train"
    done = subprocess.run(["g++", "-std=c++20", f"-I{ROOT / 'capi'}", f"-I{ROOT / 'bindings' / 'cpp'}", "-x", "c++", "-",
                           "-o", program, f"-L{BUILD / 'lib'}", "-lcache", f"-Wl,-rpath,{BUILD / 'lib'}"], input=BLOCKS[0],
                          capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    with tempfile.TemporaryDirectory(prefix="lcr-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIBCACHE_", "MS_CACHE_"))}
        environment = {**kept, "LIBCACHE_DIR": folder}
        alone, served = (subprocess.run([*words, program], env=environment, capture_output=True, text=True, timeout=280, check=False)
                         for words in ([], [BUILD / "bin" / "cache_admin", "--run", "--"]))
    assert alone.returncode == 1 and alone.stderr.startswith("Server on port 50052 is not reachable"), alone
    assert (served.returncode, served.stdout, served.stderr) == (0, "", ""), "all rows are misses, and are put"
