# SPDX-License-Identifier: Apache-2.0
"""The manual says what the code does: nothing exported, no option, no error code without its words, and nothing in the
pages that is not there. Examples compile; those that are programs run."""
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAN = ROOT / "man"
HEADER = ROOT / "capi" / "libcache.h"
BUILD = Path(os.environ.get("LIBCACHE_BUILD", ROOT / "build")).resolve()
WATCHDOG_SECONDS = 300
PAGES = sorted(path for path in MAN.iterdir() if re.fullmatch(r"[\w-]+\.[1-8]", path.name))
ALIASES = [path for path in PAGES if path.read_text().startswith(".so ")]
WRITTEN = [path for path in PAGES if path not in ALIASES]
CALLS = re.findall(r"^\s+(cache_\w+);", (ROOT / "capi" / "libcache.map").read_text(), re.M)
C11 = [*shlex.split(os.environ.get("CC", "gcc")), "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]


def name_of(path):
    return path.name


def aliased(alias):
    """The page that an alias stands for."""
    match = re.fullmatch(r"\.so man([1-8])/([\w-]+\.\1)\n", alias.read_text())
    assert match, f"{alias.name} is no line '.so manN/page.N'"
    return MAN / match[2]


def section(page, heading):
    """The lines of one section of a page."""
    match = re.search(rf"^\.Sh {heading}\n(.*?)(?=^\.Sh |\Z)", page.read_text(), re.M | re.S)
    assert match, f"{page.name} has no section {heading}"
    return match[1]


def names(page):
    return re.findall(r"^\.Nm ([\w-]+)", section(page, "NAME"), re.M)


def run(command, **keywords):
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_SECONDS, check=False, **keywords)


def compile_c(source, *options):
    result = run([*C11, *options, "-x", "c", "-"], input=source)
    assert result.returncode == 0, f"{result.stderr}\n{source}"


# ---- form --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_mandoc_finds_nothing_to_complain_about(page):
    if not shutil.which("mandoc"):
        pytest.skip("mandoc is not installed (make deps-dev)")
    result = run(["mandoc", "-Tlint", str(page)])
    # Whether a page that is referred to exists is checked below; mandoc looks for it among the installed ones.
    complaints = [line for line in result.stdout.splitlines() if "referenced manual not found" not in line]
    assert complaints == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_named_after_what_it_documents(page):
    target = aliased(page) if page in ALIASES else page
    assert target in WRITTEN
    assert page.stem in names(target)


def test_every_name_of_a_page_has_a_file():
    missing = [f"{name}{page.suffix}" for page in WRITTEN for name in names(page)
               if not (MAN / f"{name}{page.suffix}").exists()]
    assert missing == []


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_references_lead_to_pages(page):
    for name, number in re.findall(r"^\.Xr ([\w-]+) (\d)", page.read_text(), re.M):
        if name.startswith(("cache_", "libcache", "dataset-cache")):
            assert (MAN / f"{name}.{number}").exists(), f"{page.name} refers to {name}({number})"


# ---- calls -------------------------------------------------------------------------------------------------------------
def test_every_exported_call_has_a_page_and_every_page_a_call():
    documented = {page.stem for page in PAGES if page.suffix == ".3"} - {"libcache"}
    assert documented == set(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_listed_in_the_overview(call):
    assert f".Xr {call} 3" in (MAN / "libcache.3").read_text()


def prototypes(page):
    """The declarations in a SYNOPSIS, as C."""
    lines = section(page, "SYNOPSIS").splitlines()
    declarations, returns, open_call = [], None, None
    for line in lines:
        macro, _, rest = line.partition(" ")
        words = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', rest)]
        if macro == ".Ft":
            returns = rest
        elif macro == ".Fn":
            declarations.append(f"{returns} {words[0]}({', '.join(words[1:])});")
        elif macro == ".Fo":
            open_call = [words[0]]
        elif macro == ".Fa":
            open_call += words
        elif macro == ".Fc":
            declarations.append(f"{returns} {open_call[0]}({', '.join(open_call[1:])});")
    return declarations


CALL_PAGES = [page for page in WRITTEN if page.suffix == ".3" and page.stem != "libcache"]


@pytest.mark.parametrize("page", CALL_PAGES, ids=name_of)
def test_the_synopsis_declares_what_the_header_declares(page):
    declarations = prototypes(page)
    assert len(declarations) == len(names(page))
    compile_c("#include <libcache.h>\n" + "\n".join(declarations) + "\n", "-fsyntax-only")


@pytest.mark.parametrize("page", CALL_PAGES, ids=name_of)
def test_a_call_page_tells_what_a_user_must_know(page):
    for heading in ("DESCRIPTION", "RETURN VALUES", "EXAMPLES", "ERRORS", "SEE ALSO"):
        assert section(page, heading).strip()
    assert ".Ss Threads, fork, blocking\n" in section(page, "DESCRIPTION")


def test_every_error_code_stands_in_the_overview_with_its_number():
    described = dict(re.findall(r"^\.It Er (CACHE_\w+) Pq \\?(-?\d+)$", section(MAN / "libcache.3", "ERRORS"), re.M))
    enumeration = re.search(r"enum cache_error \{(.*?)\};", HEADER.read_text(), re.S)[1]
    assert described == dict(re.findall(r"^\s*(CACHE_\w+) = (-?\d+)", enumeration, re.M))


def test_no_page_speaks_of_a_constant_that_is_not_there():
    header = HEADER.read_text()
    for page in WRITTEN:
        for constant in re.findall(r"\bCACHE_\w+", page.read_text().replace(f".Dt {page.stem.upper()}", "")):
            assert re.search(rf"\b{constant}\b", header) or constant in ("MS_CACHE_PORT", "MS_CACHE_HOST"), \
                f"{page.name}: {constant}"


# ---- options -----------------------------------------------------------------------------------------------------------
def help_options(program):
    path = BUILD / "bin" / program
    if not path.exists():
        pytest.skip(f"{path} is not built (make)")
    result = run([str(path), "--help"])
    assert result.returncode == 0, result.stderr
    own = re.sub(rf"\b(?!{program}\b)cache_\w+ --\w+", "", result.stdout)  # without what it says of the other program
    return set(re.findall(r"(?<![\w<-])(--?[A-Za-z]\w*)", own))


def page_options(page):
    return {f"-{name}" for name in re.findall(r"\bFl (-?[A-Za-z]\w*)", page.read_text())}


@pytest.mark.parametrize("program, number", [("cache_admin", 1), ("cache_perf", 1), ("cache_server", 8)])
def test_every_option_has_its_words_and_every_word_is_an_option(program, number):
    printed, described = help_options(program), page_options(MAN / f"{program}.{number}")
    assert printed - described == set()
    # What cache_admin hands on to cache_server may be missing from its own help, as in the system re-created.
    assert described - printed - help_options("cache_server") == set()


# ---- messages ----------------------------------------------------------------------------------------------------------
def string_literals():
    """All text in quotes of the sources, adjacent literals joined."""
    text = "\n".join(path.read_text() for folder in ("core", "capi") for path in (ROOT / folder).rglob("*.cc"))
    text += "\n".join(path.read_text() for path in (ROOT / "core").rglob("*.h"))
    return re.sub(r'"\s*\n\s*"', "", text)


def quoted_messages():
    chapter = section(MAN / "libcache.7", "TROUBLESHOOTING")
    for subsection in re.findall(r"^\.Ss (?:Messages [^\n]*|Huge pages)\n(.*?)(?=^\.Ss |\Z)", chapter, re.M | re.S):
        yield from re.findall(r"^\.It (.*)$", subsection, re.M)


@pytest.mark.parametrize("item", quoted_messages())
def test_a_message_that_is_explained_is_one_that_is_given(item):
    sources = string_literals()
    # What stands between the placeholders (Ar X), which are filled in as the system's own words are.
    for part in re.split(r"\bAr [\w.]+|\(\.\.\.\)| failed: .*", item):
        words = re.sub(r"\b(No|Ns)\b|\\&", " ", part).strip(" ,().")
        assert " ".join(words.split()) in sources, f"no source says '{words}'"


# ---- examples ----------------------------------------------------------------------------------------------------------
def examples(page):
    """The C of a page's EXAMPLES."""
    for block in re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed", section(page, "EXAMPLES"), re.M | re.S):
        if "#include" in block:
            yield re.sub(r"^\\&", "", block.replace("\\e", "\\"), flags=re.M)


EXAMPLES = [(page, code) for page in WRITTEN if page.suffix == ".3" for code in examples(page)]


def page_name(example):
    return example[0].name


@pytest.fixture
def server_folder():
    with tempfile.TemporaryDirectory(prefix="lcd-", dir="/tmp") as folder:  # short: a socket's path has 107 bytes
        yield folder


def test_every_call_page_has_an_example():
    assert {page for page, _ in EXAMPLES} == {page for page in WRITTEN if page.suffix == ".3"}


@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_an_example_compiles(example):
    compile_c(example[1], "-fsyntax-only")


@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_an_example_does_what_it_shows(example, tmp_path, server_folder):
    """A program is run as it is; functions are called by examples.c. Each with a server of its own."""
    admin, library = BUILD / "bin" / "cache_admin", BUILD / "lib"
    for needed in (admin, BUILD / "bin" / "cache_server", library / "libcache.so"):
        if not needed.exists():
            pytest.skip(f"{needed} is not built (make)")
    page, code = example
    program, source = tmp_path / "example", code
    if "int main(" not in code:
        (tmp_path / "example.inc").write_text(code)
        source = (Path(__file__).parent / "examples.c").read_text()
    compile_c(source, f"-I{tmp_path}", f"-DPAGE_{page.stem}", "-o", str(program), f"-L{library}",
              f"-Wl,-rpath,{library}", "-Wl,--no-as-needed", "-lcache")
    environment = {**os.environ, "LIBCACHE_DIR": server_folder}
    result = run([str(admin), "--run", "--", str(program)], env=environment)
    assert result.returncode == 0, result.stderr


def test_the_c_in_the_readme_compiles_and_is_the_quickstart_example():
    blocks = re.findall(r"^```c\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        compile_c(block, "-fsyntax-only")
        assert block.strip() in (ROOT / "capi" / "examples" / "quickstart.c").read_text()
