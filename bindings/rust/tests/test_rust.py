# SPDX-License-Identifier: Apache-2.0
"""The crate's own tests, as cargo runs them, and its structures against those of libcache.h. Skipped where cargo is
missing."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CRATE = ROOT / "bindings" / "rust"
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
CARGO = shutil.which(os.environ.get("CARGO", "cargo"))
HANG_SECONDS = 280  # a watchdog, not an expectation

pytestmark = [
    pytest.mark.skipif(CARGO is None, reason="cargo is not installed (make deps-rust)"),
    pytest.mark.skipif(not (BUILD / "lib" / "libcache.so").exists(), reason="libcache.so is not built (make)"),
]


def cargo(*words):
    environment = {**os.environ, "LIBCACHE_BUILD": str(BUILD), "LIBCACHE_LIB_DIR": str(BUILD / "lib"),
                   "CARGO_TARGET_DIR": str(BUILD / "obj" / "rust"),
                   # rustdoc gives examples no run path of their own
                   "LD_LIBRARY_PATH": str(BUILD / "lib")}
    done = subprocess.run([CARGO, *words], cwd=CRATE, env=environment, capture_output=True, text=True,
                          timeout=HANG_SECONDS, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("what", ["--tests", "--doc"])
def test_the_tests_of_the_crate_pass(what):
    output = cargo("test", "--offline", "--locked", what)
    assert sum(map(int, re.findall(r"^test result: ok\. (\d+) passed; 0 failed", output, re.M))) > 0, output


def test_the_sources_have_rustfmts_form():
    if subprocess.run([CARGO, "fmt", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("rustfmt is not installed")
    cargo("fmt", "--check")


def layout_in_c(names):
    """Size and offsets as the C compiler sees them, of the structures and fields that are named."""
    lines = [f'printf("{name} %zu\\n", ' + ("offsetof({}, {})".format(*name.split(".")) if "." in name else
                                            f"sizeof({name})") + ");" for name in names]
    source = "#include <libcache.h>\n#include <stdio.h>\nint main(void) {" + "\n".join(lines) + "}"
    program = BUILD / "obj" / "rust" / "layouts_in_c"
    subprocess.run(["gcc", "-std=c11", f"-I{ROOT / 'capi'}", "-x", "c", "-", "-o", program], input=source, text=True,
                   check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def test_structures_lie_as_the_header_says():
    lines = cargo("run", "--quiet", "--offline", "--locked", "--example", "layouts").splitlines()
    assert lines == layout_in_c([line.split()[0] for line in lines])


def test_no_field_and_no_structure_of_the_header_is_forgotten():
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "capi" / "libcache.h").read_text(), flags=re.S)
    told = {line.split()[0] for line in
            cargo("run", "--quiet", "--offline", "--locked", "--example", "layouts").splitlines()}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", header, re.S):
        fields = {re.sub(r"\[.*", "", declaration).split()[-1].lstrip("*") for declaration in body.split(";")
                  if declaration.strip()}
        assert {name} | {f"{name}.{field}" for field in fields} <= told


def test_every_call_of_the_header_is_declared():
    calls = set(re.findall(r"^\s+(cache_\w+);", (ROOT / "capi" / "libcache.map").read_text(), re.M))
    assert calls == set(re.findall(r"pub fn (cache_\w+)\(", (CRATE / "src" / "sys.rs").read_text()))


def test_error_codes_and_types_are_the_headers():
    header = (ROOT / "capi" / "libcache.h").read_text()
    codes = re.search(r"enum cache_error \{(.*?)\};", header, re.S)[1]
    expected = {int(number) for number in re.findall(r"CACHE_E\w+ = (-\d+)", codes)}
    mapped = (CRATE / "src" / "error.rs").read_text()
    assert expected == {int(number) for number in re.findall(r"^\s+(-\d+) => Error::", mapped, re.M)} | {-1002}
    types = dict(re.findall(r"CACHE_([A-Z]+\d*) = (\d+)\b", re.search(r"enum cache_dtype \{(.*?)\};", header, re.S)[1]))
    named = re.findall(r"^    (\w+) = (\d+),", (CRATE / "src" / "column.rs").read_text(), re.M)
    assert types == {name.upper(): number for name, number in named}
