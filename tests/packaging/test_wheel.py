# SPDX-License-Identifier: Apache-2.0
"""`make wheel`: in a virtual environment without any libcache it brings library, programs and entry points."""
import importlib.util
import os
import re
import sys
import zipfile

import pytest

from conftest import BUILD, make, must_run

MODULES = ("venv", "ensurepip", "setuptools", "wheel", "cffi", "numpy")
MISSING = [name for name in MODULES if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no Python module {', '.join(MISSING)}")

ROWS = """
import libcache, os
with libcache.Client() as client:
    cache = client.session(int(os.environ["SESSION_ID"])).open(1)
    cache.put(7, b"from a wheel")
    print(bytes(cache[7][0]).decode())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("bin", "lib", "obj"):
        os.symlink(BUILD / name, folder / name)
    make("wheel", build=folder)
    (made,) = (folder / "wheel").iterdir()
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin folder of a virtual environment with the wheel. NumPy and cffi are the system's: nothing is fetched."""
    folder = tmp_path_factory.mktemp("environment")
    must_run(sys.executable, "-m", "venv", "--system-site-packages", folder)
    must_run(folder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


def test_the_wheel_is_for_glibc_2_28_and_later(wheel):
    assert re.search(r"-cp3\d+-cp3\d+-manylinux_2_28_\w+\.whl$", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert wheel.name.rpartition("-")[2].removesuffix(".whl") in archive.read(name).decode()


def test_pip_takes_a_numpy_that_the_modules_can_be_imported_with(wheel):
    """Made with NumPy 1 they fail with NumPy 2; the tests here run with the one that they were made with."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (asked,) = re.findall(r"^Requires-Dist: (numpy\b[^;\n]*)$", archive.read(name).decode(), re.M)
    major = must_run(sys.executable, "-c", "import numpy; print(numpy.__version__)").partition(".")[0]
    assert asked == ("numpy (<2)" if major == "1" else "numpy")


def test_nothing_in_it_asks_for_a_newer_glibc(installed):
    (package,) = (installed.parent / "lib").glob("python*/site-packages/libcache")
    files = [*package.glob("*.so"), *package.glob("lib/*.so*"), *package.glob("bin/*")]
    assert len(files) >= 6
    for file in files:
        asked = {tuple(map(int, version.split("."))) for version in re.findall(r"\bGLIBC_([\d.]+)", must_run("readelf", "-V", file))}
        assert max(asked) <= (2, 28), f"{file.name} asks for glibc {max(asked)}"


def test_nothing_in_it_needs_a_library_from_elsewhere(installed):
    for program in (installed.parent / "lib").glob("python*/site-packages/libcache/bin/*"):
        for library in re.findall(r"=> (\S+)", must_run("ldd", program)):
            inside = str(installed.parent) in library
            assert inside or re.search(r"/lib(c|m|pthread|dl|rt|gcc_s)\.so", library), f"{program.name}: {library}"


def test_its_programs_and_its_library_work_together(installed, server_folder):
    environment = {"LIBCACHE_DIR": server_folder}
    said = must_run(installed / "cache_admin", "--run", "--", installed / "python", "-c", ROWS, environment=environment, cwd="/")
    assert said.splitlines()[-1] == "from a wheel"


@pytest.mark.parametrize("program", ["cache_admin", "cache_perf", "cache_server", "dataset-cache"])
def test_each_program_is_on_the_path(installed, program):
    assert re.search(r"\d+\.\d+\.\d+", must_run(installed / program, "--version"))


def test_pip_takes_all_of_it_away_again(wheel, tmp_path):
    must_run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path)
    before = {path for path in tmp_path.rglob("*")}
    python = tmp_path / "bin" / "python"
    must_run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile", wheel)
    must_run(python, "-m", "pip", "uninstall", "-y", "libcache-shm")
    assert {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} <= before
