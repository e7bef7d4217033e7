# SPDX-License-Identifier: Apache-2.0
"""README.md and README.zh-CN.md show the same commands, and what they show works: the commands are run in the order in
which they stand, against the programs of a build ($LIBCACHE_BUILD, else build), and the C is compiled and run."""
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = (ROOT / os.environ.get("LIBCACHE_BUILD", "build")).resolve()
READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
OURS = ("LIBCACHE_", "MS_CACHE_", "SESSION_ID")
WATCHDOG_SECONDS = 120
RUNS_ELSEWHERE = "make "  # each has a test of its own, and takes minutes


def name_of(path):
    return path.name


def commands(readme):
    """The shell lines of a README: those indented by four, without their comments."""
    lines = [line.strip() for line in re.findall(r"^    (\S.*)$", readme.read_text(encoding="utf-8"), re.M)]
    found = [re.sub(r"\s+#.*$", "", line) for line in lines if re.match(r"(make|build/bin/|export|python|gcc) ?", line)]
    assert len(found) >= 5, f"{readme.name} shows no commands"
    return found


def test_both_readmes_show_the_same_commands():
    assert commands(READMES[0]) == commands(READMES[1])


def test_both_readmes_show_the_same_c_and_the_same_figures():
    for pattern in (r"^```c\n(.*?)^```", r"^\| `cache_\w+.*$", r"\|( [\d.,]+ \|)+$"):
        first, second = (re.findall(pattern, readme.read_text(encoding="utf-8"), re.M | re.S if "```" in pattern else re.M)
                         for readme in READMES)
        if pattern.startswith(r"^\|"):
            first, second = ([re.findall(r"`cache_\w+`|[\d,.]{2,}", line) for line in lines] for lines in (first, second))
        assert first and first == second


@pytest.mark.parametrize("readme", READMES, ids=name_of)
def test_the_figure_of_the_first_page_is_that_of_the_table(readme):
    text = readme.read_text(encoding="utf-8")
    first_page = text[:text.index("- **")]
    row = re.search(r"^\| `cache_get`[^`|]*\|(.*)\|$", text, re.M).group(1)
    figures = re.findall(r"\d[\d.,]*", row)  # ours, its spread, the floor, LMDB
    assert len(figures) == 4
    assert re.search(r"\D.*?\D".join(rf"\b{re.escape(figure)}\b" for figure in figures), first_page, re.S), figures


@pytest.mark.parametrize("readme", READMES, ids=name_of)
def test_the_commands_of_a_readme_work(readme, tmp_path):
    for needed in ("cache_admin", "cache_server"):
        if not (BUILD / "bin" / needed).exists():
            pytest.skip(f"{BUILD}/bin/{needed} is not built (make)")
    for name, target in (("build", BUILD), ("capi", ROOT / "capi")):
        os.symlink(target, tmp_path / name)
    (tmp_path / "train.py").write_text("import os\nprint('trained in session', os.environ['SESSION_ID'])\n")
    (tmp_path / "python").symlink_to("/usr/bin/python3")
    script = "\n".join(["set -e", *(line for line in commands(readme) if not line.startswith(RUNS_ELSEWHERE))])
    with tempfile.TemporaryDirectory(prefix="lcd-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(OURS) or name == "LIBCACHE_TEST_RUN"}
        environment |= {"LIBCACHE_DIR": folder, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        try:
            done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True,
                                  timeout=WATCHDOG_SECONDS, stdin=subprocess.DEVNULL, check=False)
        finally:
            subprocess.run([BUILD / "bin" / "cache_admin", "--stop"], env=environment, capture_output=True, check=False,
                           timeout=WATCHDOG_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^trained in session \d+$", done.stdout, re.M)
    assert "row 42: 2 columns, the image's last byte is 6" in done.stdout
