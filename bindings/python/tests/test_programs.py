# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/ and perf/ as somebody meets them who has them for the first time: --help, options that are
not there, values and folders that cannot be, no server. One sentence and an exit code, and never a traceback."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ADMIN, BUILD, WATCHDOG
from readme import README

FOLDER = README.parent
NOT_PROGRAMS = {"training.py", "cache_util.sh", "measure.py"}  # for other files to import or to read in
PROGRAMS = {path.name: path for folder in ("examples", "perf") for path in sorted((FOLDER / folder).glob("*.*"))
            if path.name not in NOT_PROGRAMS}
OF_TORCH = {"lenet_mnist.py", "resnet_cifar10.py", "distributed.sh", "loading.py"}
MINDSPORE = """
import sys, types
class Anything:
    def __getattr__(self, name): return Anything()
    def __mro_entries__(self, bases): return ()
    def __call__(self, *words, **names): return Anything()
for name in ("dataset", "dataset.transforms", "dataset.vision"):
    sys.modules["mindspore." + name] = module = types.ModuleType("mindspore." + name)
    module.__getattr__ = lambda name: Anything()
dataset = sys.modules["mindspore.dataset"]
dataset.transforms, dataset.vision = (sys.modules["mindspore.dataset." + name] for name in ("transforms", "vision"))
Model = dtype = nn = set_seed = Anything()
"""


@pytest.fixture(autouse=True)
def no_server_runs(no_server, monkeypatch):
    monkeypatch.setenv("LIBCACHE_TEST_DATA", "/nowhere")
    monkeypatch.setenv("CACHE_ADMIN", str(ADMIN))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("RANKS", "2")


def run(name, *words):
    if name in OF_TORCH:
        for module in ("torch", "torchvision"):
            pytest.importorskip(module, reason=f"python3-{module} is not installed (make deps-torch): {name} is not tested")
    program = [sys.executable, str(PROGRAMS[name])] if name.endswith(".py") else [str(PROGRAMS[name])]
    return subprocess.run([*program, *map(str, words)], capture_output=True, text=True, timeout=2 * WATCHDOG,
                          stdin=subprocess.DEVNULL, check=False)


def assert_one_sentence(done, *words):
    """That it ended with 1 or 2, and that all that it said, usage apart, is one line with these words."""
    assert done.returncode in (1, 2), done
    sentences = re.sub(r"^usage: .*\n(?: .*\n)*", "", done.stderr).splitlines()
    assert len(sentences) == 1 and all(str(word) in sentences[0] for word in words), done.stderr
    assert done.stdout == ""


@pytest.fixture
def mindspore(tmp_path, monkeypatch):
    """Something that has the name; MindSpore itself is there in `make test-mindspore` only."""
    if importlib.util.find_spec("mindspore") is None:
        (tmp_path / "mindspore.py").write_text(MINDSPORE)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")


def options_of(text):
    return set(re.findall(r"(?<![\w<$.{-])(--[a-z][\w-]*)", text))


def head(name):
    """The words at the beginning of a program."""
    text = PROGRAMS[name].read_text(encoding="utf-8")
    return text.split('"""')[1] if name.endswith(".py") else re.search(r"(?:^#.*\n)+", text, re.M)[0]


def without_cache_admin(text):
    """Without its options: up to `--`, `|`, the end of the line or of the code."""
    return re.sub(r"cache_admin.*?(?= -- |\||[`)]|$)", "", text, flags=re.M)


def help_of(name, kept={}):  # noqa: B006 - for the whole run: importing torch takes seconds
    if name not in kept:
        kept[name] = run(name, "--help")
    return kept[name]


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_tells_of_each_option(name, mindspore):
    done = help_of(name)
    assert (done.returncode, done.stderr) == (0, "") and len(done.stdout.split()) > 10
    assert options_of(without_cache_admin(head(name))) <= options_of(done.stdout)
    if name.endswith(".py"):
        assert done.stdout.startswith(f"usage: {name}")
        described = re.findall(r"^  (?:-h, )?(--\w+)[^\n]*?(?:\n +| {2,})\w", done.stdout, re.M)
        assert set(described) >= options_of(done.stdout) - {"--no-cache"}  # each with words of what it does


def test_the_options_in_the_readme_are_there(mindspore):
    code = re.findall(r"`[^`\n]+`|^    .*$", README.read_text(encoding="utf-8"), re.M)
    named = options_of(without_cache_admin("\n".join(code)))
    assert "--plan" in named
    assert named <= set().union(*(options_of(help_of(name).stdout) for name in PROGRAMS))


def test_the_programs_in_the_readme_are_there():
    named = re.findall(r"[\w/]+\.(?:py|sh)\b", README.read_text(encoding="utf-8").partition("## Files")[2])
    assert named and [name for name in named
                      if not any((FOLDER / folder / name).exists() for folder in ("", "examples", "perf", "libcache"))] == []
    assert set(PROGRAMS) - {Path(name).name for name in named} == set(), "the README names all"


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_option_that_is_not_there(name, mindspore):
    needed = {"fill_and_train.py": ["/"], "mindspore_lenet.py": ["/", "--session", "1"]}
    assert_one_sentence(run(name, "--sesion", *needed.get(name, [])), "--sesion")


@pytest.mark.parametrize("name", ["fill_and_train.py", "mindspore_lenet.py", "article.sh", "tutorial.sh"])
def test_usage_is_shown_to_who_leaves_out_what_is_needed(name, mindspore):
    done = run(name)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith(f"usage: {name} ")


@pytest.mark.parametrize("name, words, sentence", [
    ("lenet_mnist.py", ["--batch", "0"], "argument --batch: 0 is less than 1"),
    ("lenet_mnist.py", ["--rows", "-1"], "argument --rows: -1 is less than 0"),
    ("resnet_cifar10.py", ["--epochs", "many"], "argument --epochs: invalid"),
    ("fill_and_train.py", ["/", "0"], "argument EPOCHS: 0 is less than 1"),
    ("loading.py", ["--only", "P9"], "argument --only: invalid choice: 'P9'"),
    ("loading.py", ["--json", "/nowhere/loading.json"], "--json /nowhere/loading.json"),
    ("rows.py", ["--repetitions", "0"], "argument --repetitions: 0 is less than 1"),
    ("distributed.sh", ["--workers", "-1"], "argument --workers: -1 is less than 0"),
])
def test_a_value_that_cannot_be(name, words, sentence):
    assert_one_sentence(run(name, *words), sentence)


@pytest.mark.parametrize("name, words", [
    ("lenet_mnist.py", ["--data"]), ("resnet_cifar10.py", ["--data"]), ("fill_and_train.py", []),
    ("mindspore_lenet.py", ["--session", "1"]), ("distributed.sh", ["--data"]), ("article.sh", ["/"]), ("tutorial.sh", []),
])
def test_a_data_folder_that_is_not_there(name, words, mindspore, tmp_path):
    assert_one_sentence(run(name, *words, tmp_path / "data"), tmp_path / "data")


@pytest.mark.parametrize("name", ["lenet_mnist.py", "resnet_cifar10.py", "distributed.sh"])
def test_a_data_folder_that_is_empty(name, tmp_path):
    assert_one_sentence(run(name, "--data", tmp_path), tmp_path)


@pytest.mark.parametrize("part", ["P4", "P5"])
def test_measurements_without_data_name_the_variable(part, own_server):
    done = run("loading.py", "--only", part)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert "/nowhere" in done.stderr and "LIBCACHE_TEST_DATA" in done.stderr


@pytest.mark.parametrize("name", ["rows.py", "loading.py"])
def test_measurements_without_a_server_say_how_to_start_one(name):
    assert_one_sentence(run(name), "not reachable", "cache_admin --run -- python3")


def test_without_mindspore_its_example_says_so(tmp_path, monkeypatch):
    (tmp_path / "mindspore.py").write_text("raise ModuleNotFoundError(\"No module named 'mindspore'\")")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{BUILD / 'python'}")
    assert_one_sentence(run("mindspore_lenet.py", "--help"), "needs MindSpore", "requirements-mindspore.txt")
