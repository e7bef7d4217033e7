# SPDX-License-Identifier: Apache-2.0
"""What check_abi.py says to changes of a header: each break is seen, what libcache.h allows is an addition."""
import re
import shutil

import pytest

from conftest import BUILD, HERE, ROOT, run

pytest.importorskip("pycparser", reason="pycparser is not installed (python3-pycparser)")
HEADER = ROOT / "capi" / "libcache.h"
LIBRARY = BUILD / "lib" / "libcache.so.1"


def guard(header, reference, *words, script=HERE / "check_abi.py"):
    return run("/usr/bin/python3", script, "--header", header, "--library", LIBRARY, "--reference", reference, *words)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    file = tmp_path_factory.mktemp("abi") / "reference.txt"
    assert guard(HEADER, file, "--write").returncode == 0
    return file


@pytest.fixture
def changed(reference, tmp_path):
    """What the guard says to a header in which `old` (a regular expression) has become `new`."""

    def check(old, new, *words):
        text, count = re.subn(old, new, HEADER.read_text(), count=1, flags=re.M)
        assert count == 1, f"libcache.h has no '{old}'"
        (tmp_path / "libcache.h").write_text(text)
        return guard(tmp_path / "libcache.h", reference, *words)

    return check


def test_the_interface_is_that_of_the_reference():
    done = guard(HEADER, HERE / "reference.txt")
    assert done.returncode == 0, done.stderr


BREAKS = {
    "a call has gone": (r"^int cache_flush\(cache \*handle\) CACHE_NOEXCEPT;$", ""),
    "a parameter has another type": (r"uint32_t cache_id, const cache_options", "uint64_t cache_id, const cache_options"),
    "a result has another type": (r"^int cache_view_columns", "int64_t cache_view_columns"),
    "a code has another number": (r"CACHE_EFULL = -1003", "CACHE_EFULL = -2003"),
    "a limit has another number": (r"CACHE_MAX_TAG_BYTES 64u", "CACHE_MAX_TAG_BYTES 128u"),
    "a field has moved": (r"    uint32_t dtype;       .*\n    uint32_t ndim;.*\n", "    uint32_t ndim;\n    uint32_t dtype;\n"),
    "a field has gone": (r"^    int64_t dead_bytes;.*\n", ""),
    "a field has another type": (r"    int64_t rows_spilled;", "    uint64_t rows_spilled;"),
    "a field came between": (r"^    int64_t rows_spilled;", "    int64_t rows_lost;\n    int64_t rows_spilled;"),
    "a structure of arrays has grown": (r"    uint64_t reserved\[6\];", "    uint64_t reserved[7];"),
    "reserved room has shrunk": (r"    uint64_t reserved\[6\];", "    uint64_t reserved[5];"),
    "a macro has gone": (r"^#define CACHE_OPTIONS_INIT .*\n", ""),
    "a type has another meaning": (r"typedef int \(\*cache_list_callback\)", "typedef long (*cache_list_callback)"),
}


@pytest.mark.parametrize("change", BREAKS.values(), ids=BREAKS.keys())
def test_a_break_is_refused_and_never_stored(changed, reference, change):
    before = reference.read_text()
    for words in ((), ("--write",)):
        done = changed(*change, *words)
        assert done.returncode == 1 and "CACHE_VERSION_MAJOR" in done.stderr, done
    assert reference.read_text() == before


ADDITIONS = {
    "a code": (r"(CACHE_ELIMIT = -1016)", r"\1, CACHE_ENEW = -1017", "constant CACHE_ENEW -1017"),
    "a limit": (r"^(#define CACHE_MAX_NAME_BYTES .*)$", r"\1\n#define CACHE_MAX_NEW 7u", "constant CACHE_MAX_NEW 7"),
    "a call": (r"^(int cache_flush.*)$", r"\1\nint cache_new(cache *handle) CACHE_NOEXCEPT;", "call int cache_new(cache *)"),
    "a field at the end": (r"^(    int64_t spill_used_bytes;.*)$", r"\1\n    int64_t new_bytes;", "field cache_server_stats.new_bytes"),
    "a field in reserved room": (r"    uint64_t reserved\[6\];", "    uint64_t fresh;\n    uint64_t reserved[5];",
                                 "field cache_view.fresh"),
}


@pytest.mark.parametrize("change", ADDITIONS.values(), ids=ADDITIONS.keys())
def test_an_addition_is_explained(changed, change):
    old, new, line = change
    done = changed(old, new)
    assert done.returncode == 1 and line in done.stderr and "make abi-reference" in done.stderr
    assert "broken" not in done.stderr


def test_another_name_of_a_parameter_is_no_change(changed):
    assert changed(r"^int cache_flush\(cache \*handle\)", "int cache_flush(cache *rows)").returncode == 0


@pytest.mark.parametrize("version, changelog, stored", [
    ((1, 0), "## 1.0.0 (unreleased)", True), ((1, 0), "## 1.0.0", False), ((1, 1), "## 1.0.0", True)])
def test_an_addition_to_a_release_needs_a_version_of_its_own(reference, tmp_path, version, changelog, stored):
    (tmp_path / "tests" / "abi").mkdir(parents=True)
    script = shutil.copy(HERE / "check_abi.py", tmp_path / "tests" / "abi")
    (tmp_path / "CHANGELOG.md").write_text(changelog + "\n")
    kept = shutil.copy(reference, tmp_path / "reference.txt")
    lines = [f"version 1.0.0", *open(kept).read().splitlines()[1:]]
    (tmp_path / "reference.txt").write_text("\n".join(lines) + "\n")
    text = HEADER.read_text().replace("CACHE_ELIMIT = -1016", "CACHE_ELIMIT = -1016, CACHE_ENEW = -1017")
    for part, number in zip(("MAJOR", "MINOR"), version):
        text = re.sub(rf"^#define CACHE_VERSION_{part} \d+", f"#define CACHE_VERSION_{part} {number}", text, flags=re.M)
    (tmp_path / "libcache.h").write_text(text)
    done = guard(tmp_path / "libcache.h", kept, "--write", script=script)
    assert (done.returncode == 0) == stored, done.stderr
    assert ("CACHE_ENEW" in (tmp_path / "reference.txt").read_text()) == stored
