# SPDX-License-Identifier: Apache-2.0
"""The C++ in the README compiles, with warnings as errors, with and without exceptions, and by the commands that stand
there, and runs."""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
README = (ROOT / "bindings" / "cpp" / "README.md").read_text()
BLOCKS = re.findall(r"^```cpp\n(.*?)^```", README, re.M | re.S)
COMMANDS = re.findall(r"^    (\S.*)$", re.sub(r"^```.*?^```", "", README, flags=re.M | re.S), re.M)


@pytest.mark.parametrize("more", [[], ["-fno-exceptions", "-fno-rtti"]], ids=["exceptions", "no_exceptions"])
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_in_the_readme_compiles(block, more):
    done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wold-style-cast",
                           "-Werror", "-fsyntax-only", f"-I{ROOT / 'capi'}", f"-I{ROOT / 'bindings' / 'cpp'}", *more,
                           "-x", "c++", "-"], input=block, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr


def as_in_the_tree(folder):
    """What the first command finds in the source tree."""
    for name, target in (("bindings", ROOT / "bindings"), ("capi", ROOT / "capi"), ("build", BUILD)):
        (folder / name).symlink_to(target)
    return {}


def as_installed(folder):
    """What the second one finds where libcache is installed: all by pkg-config."""
    for name, files in (("include", [ROOT / "capi" / "libcache.h", ROOT / "bindings" / "cpp" / "libcache.hpp"]),
                        ("lib", [BUILD / "lib" / "libcache.so", BUILD / "lib" / "libcache.so.1"])):
        (folder / name).mkdir()
        for file in files:
            (folder / name / file.name).symlink_to(file)
    text = (ROOT / "packaging" / "libcache.pc.in").read_text()
    for name, value in (("PREFIX", folder), ("LIBDIR", folder / "lib"), ("INCLUDEDIR", folder / "include"), ("VERSION", 1)):
        text = text.replace(f"@{name}@", str(value))
    (folder / "libcache.pc").write_text(text)
    return {"PKG_CONFIG_PATH": str(folder), "LD_LIBRARY_PATH": str(folder / "lib")}


def test_both_commands_are_tested():
    assert len(COMMANDS) == 2 and "pkg-config" not in COMMANDS[0] and "pkg-config" in COMMANDS[1]


@pytest.mark.parametrize("command, prepare", zip(COMMANDS, [as_in_the_tree, as_installed]), ids=["tree", "installed"])
def test_the_code_in_the_readme_runs_and_says_when_no_server_does(command, prepare, tmp_path):
    if "pkg-config" in command and not shutil.which("pkg-config"):
        pytest.skip("pkg-config is not installed (make deps-packaging)")
    (tmp_path / "train.cc").write_text(BLOCKS[0])
    more = prepare(tmp_path)
    done = subprocess.run(["sh", "-ec", command], cwd=tmp_path, env={**os.environ, **more}, capture_output=True, text=True,
                          timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    program = tmp_path / "a.out"
    with tempfile.TemporaryDirectory(prefix="lcr-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIBCACHE_", "MS_CACHE_"))}
        environment = {**kept, **more, "LIBCACHE_DIR": folder}
        alone, served = (subprocess.run([*words, program], env=environment, capture_output=True, text=True, timeout=280, check=False)
                         for words in ([], [BUILD / "bin" / "cache_admin", "--run", "--"]))
    assert alone.returncode == 1 and alone.stderr.startswith("Server on port 50052 is not reachable"), alone
    assert (served.returncode, served.stdout, served.stderr) == (0, "", ""), "all rows are misses, and are put"
