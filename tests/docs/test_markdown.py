# SPDX-License-Identifier: Apache-2.0
"""What README, CONTRIBUTING and the like name is there: files, make targets, pause points."""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("*.md")) + [ROOT / "core" / "README.md"]


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_file_that_is_named_exists(page):
    named = re.findall(r"(?<![\w/.-])(?:core|capi|tests|man|perf|bindings)/[\w./-]*\w", page.read_text())
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / f"{name}.cc").exists()}
    assert {name for name in missing if "NAME" not in name} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_link_leads_to_a_file(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_make_target_that_is_named_exists(page):
    rules = "\n".join(path.read_text() for path in [ROOT / "Makefile", *ROOT.glob("*/*.mk"), *ROOT.glob("*/*/*.mk")])
    for target in re.findall(r"(?:^    |`)make ([a-z][\w-]*)", page.read_text(), re.M):
        assert re.search(rf"^[\w -]*\b{target}\b[\w -]*:", rules, re.M), f"make {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_pause_point_that_is_named_exists(page):
    sources = "\n".join(path.read_text() for path in (ROOT / "core").rglob("*.cc"))
    for point in re.findall(r'LIBCACHE_PAUSE(?:\("|_AT=)([a-z]+\.[\w.]+)', page.read_text()):
        assert f'LIBCACHE_PAUSE("{point}")' in sources, point
