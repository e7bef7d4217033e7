# SPDX-License-Identifier: Apache-2.0
"""What the README shows, as it stands there: a crate of one's own that depends on this one, and the commands. (That the
code compiles is among the crate's own tests, too.) Skipped where cargo is missing."""
import os
import re
import subprocess
import tempfile

import pytest
from test_rust import BUILD, CARGO, CRATE, HANG_SECONDS, ROOT, pytestmark  # noqa: F401 - which skips these, too

README = (CRATE / "README.md").read_text()
CODE, COMMANDS, DEPENDENCY = (re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)
                              for language in ("rust.*?", "sh", "toml"))


def test_no_block_is_forgotten():
    assert len(CODE) == len(COMMANDS) == len(DEPENDENCY) == 1 and README.count("\n```") == 6
    assert "rust: " in (CRATE / "rust.mk").read_text() and COMMANDS[0].startswith("make rust ")  # `make test` makes it


def must_run(command, folder, **environment):
    done = subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS,
                          stdin=subprocess.DEVNULL, check=False, env={**os.environ, "CARGO_NET_OFFLINE": "true", **environment})
    assert done.returncode == 0, done.stderr


def test_a_crate_with_this_dependency_is_built_and_runs(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.rs").write_text(CODE[0])
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "trainer"\nversion = "1.0.0"\nedition = "2021"\n\n' + DEPENDENCY[0])
    (tmp_path / "libcache").symlink_to(ROOT)
    must_run(f"'{CARGO}' build", tmp_path, LIBCACHE_LIB_DIR=str(BUILD / "lib"), CARGO_TARGET_DIR=str(tmp_path / "target"),
             RUSTFLAGS="-D warnings")
    program = tmp_path / "target" / "debug" / "trainer"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LIBCACHE_", "MS_CACHE_"))}
    with tempfile.TemporaryDirectory(prefix="lcr-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        environment = {**kept, "LIBCACHE_DIR": folder, "LD_LIBRARY_PATH": str(BUILD / "lib")}
        alone, served = (subprocess.run([*words, program], env=environment, capture_output=True, text=True,
                                        timeout=HANG_SECONDS, check=False)
                         for words in ([], [BUILD / "bin" / "cache_admin", "--run", "--"]))
    assert alone.returncode == 1 and "Server on port 50052 is not reachable" in alone.stderr, alone
    assert (served.returncode, served.stdout, served.stderr) == (0, "", ""), "all rows are misses, and are put"


def test_the_crate_is_built_by_hand_as_shown(tmp_path):
    for name, target in (("build", BUILD), ("bindings", ROOT / "bindings")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cargo").symlink_to(CARGO)
    must_run(COMMANDS[0].splitlines()[1], tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
             CARGO_TARGET_DIR=str(BUILD / "obj" / "rust"))
