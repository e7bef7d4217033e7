# SPDX-License-Identifier: Apache-2.0
"""`make install` into a folder: what is there is found by pkg-config and CMake, compiles, runs, and goes again."""
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from conftest import BUILD, ENVIRONMENT, ROOT, WATCHDOG_SECONDS, make, must_run, needs, run

PROGRAM = ROOT / "capi" / "examples" / "quickstart.c"
VERSION = ".".join(re.search(rf"CACHE_VERSION_{part} (\d+)", (ROOT / "capi" / "libcache.h").read_text())[1]
                   for part in ("MAJOR", "MINOR", "PATCH"))


@pytest.fixture(scope="module")
def destination(tmp_path_factory):
    """DESTDIR after `make install PREFIX=/opt/cache`."""
    folder = tmp_path_factory.mktemp("destination")
    make("install", "PREFIX=/opt/cache", f"DESTDIR={folder}")
    return folder


@pytest.fixture(scope="module")
def prefix(destination):
    return destination / "opt" / "cache"


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}


def run_with_server(prefix, folder, *words):
    return must_run(prefix / "bin" / "cache_admin", "--run", "--", *words, environment={"LIBCACHE_DIR": folder})


# ---- what is there -------------------------------------------------------------------------------------------------------
def test_everything_a_user_needs_is_installed(prefix):
    there = files_below(prefix)
    assert {"bin/cache_admin", "bin/cache_server", "bin/cache_perf", "bin/dataset-cache", "include/libcache.h",
            f"lib/libcache.so.{VERSION}", "lib/libcache.so.1", "lib/libcache.so", "lib/pkgconfig/libcache.pc",
            "lib/cmake/libcache/libcache-config.cmake", "lib/cmake/libcache/libcache-config-version.cmake",
            "lib/systemd/user/cache_server.service", "share/bash-completion/completions/cache_admin",
            "share/doc/libcache/LICENSE", "share/doc/libcache/quickstart.c", "share/doc/libcache/fill_and_train.cc",
            "share/man/man7/libcache.7"} <= there
    pages = {f"share/man/man{path.suffix[1:]}/{path.name}" for path in (ROOT / "man").iterdir()}
    assert pages <= there
    assert (prefix / "lib" / "libcache.so").resolve().name == f"libcache.so.{VERSION}"


def test_no_file_speaks_of_where_it_was_made(destination, prefix):
    for file in prefix.rglob("*"):
        if file.is_file() and file.suffix in (".pc", ".cmake", ".service", ".bash"):
            text = file.read_text()
            assert str(destination) not in text and str(ROOT) not in text and not re.search(r"@\w+@", text), file


def test_the_installed_programs_run_where_they_are(prefix, server_folder):
    assert VERSION in must_run(prefix / "bin" / "dataset-cache", "--version")
    listed = run_with_server(prefix, server_folder, prefix / "bin" / "cache_admin", "--server_info")
    assert str(prefix) in must_run("ldd", prefix / "bin" / "cache_admin") and "Cache Server Configuration" in listed


@needs("man")
def test_a_page_of_each_call_is_found(prefix):
    for page in ("cache_put", "cache_commit", "libcache", "dataset-cache"):
        must_run("man", "-M", prefix / "share" / "man", "-w", page)


@needs("mandoc")
def test_a_page_that_stands_for_another_one_shows_it(prefix):
    page = prefix / "share" / "man" / "man3" / "cache_commit.3"
    assert "cache_reserve" in must_run("mandoc", "-Tascii", page, cwd=prefix / "share" / "man")


@needs("systemd-analyze")
def test_systemd_has_nothing_against_the_unit(prefix, tmp_path):
    unit = tmp_path / "cache_server.service"
    text = (prefix / "lib" / "systemd" / "user" / "cache_server.service").read_text()
    assert "ExecStart=/opt/cache/bin/cache_server --foreground\n" in text
    unit.write_text(text.replace("/opt/cache", str(prefix)))
    done = run("systemd-analyze", "verify", "--user", "--man=no", unit)
    assert "cache_server.service" not in done.stderr, done.stderr


def test_the_units_command_serves(prefix, server_folder):
    """As the manager runs it, without the manager: in the foreground, ended by SIGTERM."""
    unit = (prefix / "lib" / "systemd" / "user" / "cache_server.service").read_text()
    words = re.search(r"^ExecStart=/opt/cache/(.*)$", unit, re.M)[1].split()
    environment = {"LIBCACHE_DIR": server_folder}
    with subprocess.Popen([prefix / words[0], *words[1:]], env={**ENVIRONMENT, **environment}, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + WATCHDOG_SECONDS
            while run(prefix / "bin" / "cache_admin", "--server_info", environment=environment).returncode != 0:
                assert server.poll() is None and time.monotonic() < deadline
        finally:
            server.terminate()
    assert server.returncode == 0


# ---- what is built on it -------------------------------------------------------------------------------------------------
def flags(destination, *words):
    """What pkg-config says of the tree below DESTDIR."""
    environment = {"PKG_CONFIG_LIBDIR": destination / "opt/cache/lib/pkgconfig", "PKG_CONFIG_SYSROOT_DIR": destination}
    return must_run("pkg-config", *words, "libcache", environment={k: str(v) for k, v in environment.items()}).split()


@needs("pkg-config")
def test_pkg_config_knows_the_version(destination):
    assert flags(destination, "--modversion") == [VERSION]


@needs("pkg-config", "gcc", "g++")
@pytest.mark.parametrize("compiler", [("gcc", "-std=c11"), ("g++", "-x", "c++", "-std=c++17"), ("g++", "-x", "c++", "-std=c++20")],
                         ids=["c11", "c++17", "c++20"])
def test_a_program_is_compiled_through_pkg_config(destination, prefix, compiler, tmp_path, server_folder):
    source = ROOT / "tests" / "packaging" / "user.c"
    program = tmp_path / "user"
    strict = ["-pedantic-errors", "-Wall", "-Wextra", "-Werror"]
    must_run(*compiler, *strict, *flags(destination, "--cflags"), source, "-x", "none", "-o", program,
             *flags(destination, "--libs"), f"-Wl,-rpath,{prefix}/lib")
    assert run_with_server(prefix, server_folder, program) == f"libcache {VERSION}: row 42 is there\n"


@needs("pkg-config", "gcc")
def test_quickstart_is_built_as_its_head_says(destination, prefix, tmp_path, server_folder):
    head = PROGRAM.read_text().partition("*/")[0]
    compile_line = re.search(r"^ \*     (cc .*?) && \./quickstart", head, re.M)[1]
    path, more = re.search(r"export (PKG_CONFIG_PATH=\S+), and add (-Wl,-rpath,\S+)\.", head).groups()
    shutil.copy(prefix / "share" / "doc" / "libcache" / "quickstart.c", tmp_path)
    # The sysroot stands for DESTDIR, which a user's PREFIX does not have.
    environment = {"PREFIX": str(prefix), "PKG_CONFIG_SYSROOT_DIR": str(destination)}
    must_run("sh", "-ec", f"export {path}; {compile_line} {more}", cwd=tmp_path, environment=environment)
    assert "row 42: 2 columns" in run_with_server(prefix, server_folder, tmp_path / "quickstart")


@needs("pkg-config", "g++")
def test_the_header_for_cpp_is_installed_with_its_language(destination, prefix, tmp_path):
    if not (ROOT / "bindings" / "cpp" / "libcache.hpp").exists():
        pytest.skip("the C++ binding is not there")
    assert (prefix / "include" / "libcache.hpp").exists()
    source = tmp_path / "user.cc"
    source.write_text("#include <libcache.hpp>\nint main() {}\n")
    must_run("g++", "-std=c++20", "-fsyntax-only", *flags(destination, "--cflags"), source)


@needs("cmake", "gcc")
def test_a_cmake_project_finds_it(prefix, tmp_path, server_folder):
    project = shutil.copytree(ROOT / "tests" / "packaging" / "cmake", tmp_path / "project")
    shutil.copy(ROOT / "tests" / "packaging" / "user.c", project)
    must_run("cmake", "-S", project, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={prefix}")
    must_run("cmake", "--build", tmp_path / "out")
    assert "row 42 is there" in run_with_server(prefix, server_folder, tmp_path / "out" / "user")


@needs("cmake", "gcc")
@pytest.mark.parametrize("asked, right", [("1.0", True), (VERSION + " EXACT", True), ("1.99", False), ("2.0", False), ("0.9", False)])
def test_cmake_gets_the_version_that_it_asks_for(prefix, tmp_path, asked, right):
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(user C)\nfind_package(libcache {asked} REQUIRED)\n")
    done = run("cmake", "-S", tmp_path, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={prefix}")
    assert (done.returncode == 0) == right, done.stderr


# ---- other places, and away again ------------------------------------------------------------------------------------------
def test_programs_find_a_library_in_another_folder(tmp_path):
    make("install", "PREFIX=/usr", "LIBDIR=/usr/lib/some-machine", f"DESTDIR={tmp_path}")
    linked = must_run("ldd", tmp_path / "usr" / "bin" / "cache_admin")
    assert re.search(rf"libcache.so.1 => {tmp_path}/usr/(bin/../)?lib/some-machine/libcache.so.1", linked), linked
    assert "libdir=${prefix}/lib/some-machine" in (tmp_path / "usr/lib/some-machine/pkgconfig/libcache.pc").read_text()


def test_uninstall_takes_away_what_install_brought(tmp_path):
    (tmp_path / "opt" / "cache" / "bin").mkdir(parents=True)
    (tmp_path / "opt" / "cache" / "bin" / "somebody's").write_text("")
    make("install", "PREFIX=/opt/cache", f"DESTDIR={tmp_path}")
    make("uninstall", "PREFIX=/opt/cache", f"DESTDIR={tmp_path}")
    assert files_below(tmp_path) == {"opt/cache/bin/somebody's"}


IN_THE_TREE = ("build", ".git", ".hypothesis", ".pytest_cache", "__pycache__", "target")


def test_a_build_elsewhere_leaves_the_sources_alone(tmp_path):
    source = Path(shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(*IN_THE_TREE), symlinks=True))
    before = {name: (source / name).stat().st_mtime_ns for name in files_below(source)}
    build = tmp_path / "out"
    build.mkdir()
    os.symlink(BUILD / "lib", build / "lib")  # one object stands for all: they are made by one rule
    must_run("make", "-s", "-o", build / "lib" / "libcache.so", "OPT=-O0", f"BUILD={build}", build / "obj" / "capi" / "libcache.o",
             "python", cwd=source)
    make("install", f"DESTDIR={tmp_path / 'destination'}", root=source)
    make("uninstall", f"DESTDIR={tmp_path / 'destination'}", root=source)
    assert {name: (source / name).stat().st_mtime_ns for name in files_below(source)} == before
