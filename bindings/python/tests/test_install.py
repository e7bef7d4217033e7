# SPDX-License-Identifier: Apache-2.0
"""`pip install bindings/python` in a virtual environment against an installed libcache."""
import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import BUILD, ROOT
from readme import block

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.fixture
def prefix(tmp_path):
    """What `make install` gives: the header and the library."""
    folder = tmp_path / "prefix"
    (folder / "include").mkdir(parents=True)
    (folder / "lib").mkdir()
    shutil.copy(ROOT / "capi" / "libcache.h", folder / "include")
    shutil.copy(BUILD / "lib" / "libcache.so.1", folder / "lib")
    os.symlink("libcache.so.1", folder / "lib" / "libcache.so")
    return folder


def run(*words, **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LIBCACHE_BUILD")}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=200, cwd="/",
                          env={**kept, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pip_installs_it_as_the_readme_says(server, prefix, tmp_path):
    for module in ("venv", "ensurepip", "setuptools", "wheel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no Python module {module} (python3-venv, python3-wheel)")
    (command,) = re.findall(r"^pip install .*", block("make python"), re.M)
    shutil.copytree(PACKAGE, tmp_path / "bindings" / "python", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "venv")
    programs = tmp_path / "venv" / "bin"
    # without build isolation (0 is what pip takes for that) nothing is fetched: cffi, numpy, setuptools are the system's
    run("sh", "-ec", f"cd '{tmp_path}'; {command}", LIBCACHE_PREFIX=str(prefix), PIP_NO_BUILD_ISOLATION="0",
        PIP_NO_DEPS="1", PIP_NO_INDEX="1", PATH=f"{programs}:{os.environ['PATH']}")
    said = run(programs / "python", "-c", "import libcache; session = libcache.Client().create_session(); "
               "cache = session.open(1); cache.put(1, b'here'); print(bytes(cache[1][0]), libcache.__file__); "
               "session.destroy()")
    assert said.startswith("b'here' " + str(tmp_path / "venv"))
    assert "Name: libcache-shm" in run(programs / "python", "-m", "pip", "show", "libcache-shm")


def test_the_sources_know_both_generations_of_numpy():
    """NumPy 2 has no NPY_NTYPES; its NPY_NTYPES_LEGACY is the same number. pip without a NumPy takes the newest one."""
    define = runpy.run_path(str(PACKAGE / "build_capi.py"))["numpy_macros"]
    assert define("1.24.2") == []
    assert define("2.0.0rc1") == define("2.4.1") == [("NPY_NTYPES", "NPY_NTYPES_LEGACY")]
    header = Path(np.get_include(), "numpy", "ndarraytypes.h").read_text(encoding="utf-8")  # of the NumPy at hand
    assert re.search(rf"\b{dict(define(np.__version__)).get('NPY_NTYPES', 'NPY_NTYPES')}\b", header)


def test_without_libcache_the_build_says_what_to_do(tmp_path):
    done = subprocess.run([sys.executable, "setup.py", "--version"], capture_output=True, text=True, timeout=60,
                          cwd=PACKAGE, env={**os.environ, "LIBCACHE_BUILD": "", "LIBCACHE_PREFIX": str(tmp_path)})
    assert done.returncode != 0 and "LIBCACHE_PREFIX" in done.stderr and str(tmp_path) in done.stderr


def test_without_torch_the_run_of_the_tests_says_what_was_skipped(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not installed')", encoding="utf-8")
    said = subprocess.run([sys.executable, str(ROOT / "tests" / "run.py"), "--build", str(BUILD), "--only",
                           "*/test_torch_stats.py"], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)}).stdout  # it fails, as nothing passed
    assert "no python3-torch (make deps-torch): cache_stats is not tested" in said
    assert "0 passed, 0 failed, 1 skipped" in said


def test_torch_is_installed_by_deps_torch_alone():
    packages = {target: run("make", "-n", "-C", ROOT, target) for target in ("deps", "deps-python", "deps-torch")}
    assert ["python3-torch" in words for words in packages.values()] == [False, False, True]
    assert "python3-numpy" in packages["deps-python"]
