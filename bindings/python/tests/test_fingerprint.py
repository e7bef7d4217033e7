# SPDX-License-Identifier: Apache-2.0
"""What makes the same rows has the same fingerprint, everything else has another one or is refused."""
import collections
import functools
import io
import json
import pathlib
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from libcache import FingerprintError, fingerprint

SCALE = 2


class Resize:
    def __init__(self, size, interpolation="linear"):
        self.size, self.interpolation = size, interpolation

    def __call__(self, image):
        return image


class Source:
    def __init__(self, files, transform=None):
        self.files, self.transform = files, transform

    def __getitem__(self, index):
        return self.transform(self.files[index])


def run(code, result):
    space = {"__name__": "__main__"}
    exec(code, space)
    return space[result]


def of_code(code, result="f"):
    return fingerprint(run(code, result))


def test_it_is_64_hex_digits_and_stable():
    value = Source(["a", "b"], Resize(32))
    assert fingerprint(value) == fingerprint(Source(["a", "b"], Resize(32)))
    assert len(fingerprint(value)) == 64 and int(fingerprint(value), 16)


def test_it_is_the_same_in_another_process():
    script = """
import sys; sys.path[:0] = {path!r}
import functools, numpy as np, fingerprint_probe
from libcache import fingerprint
print(fingerprint(fingerprint_probe.make()))
"""
    probe = pathlib.Path(__file__).parent / "fingerprint_probe.py"
    assert probe.exists()
    import fingerprint_probe
    for seed in ("1", "2"):  # the order of a set differs from process to process
        done = subprocess.run([sys.executable, "-c", script.format(path=sys.path)], capture_output=True, text=True,
                              env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"}, timeout=60)
        assert done.stdout.strip() == fingerprint(fingerprint_probe.make()), done.stderr


DIFFERENT = [
    None, True, 1, 1.0, "1", b"1", (1,), [1], {1}, frozenset({1}), {1: 1}, 2, -1, 1j, [], (), {}, "", b"",
    ["ab", "c"], ["a", "bc"], [["a"], "bc"], (("a", 1),), (("a", 2),), [1, [2]], [[1], 2], range(3), slice(3), ...,
    np.arange(3), np.arange(3.0), np.arange(3).reshape(3, 1), np.int32(1), np.int64(1), np.float32, np.dtype(">i4"),
    np.array([1, "a"], object), pathlib.PurePosixPath("/a"), collections.OrderedDict(a=1), collections.deque([1]),
    Resize(32), Resize(33), Resize(32, "cubic"), Source(["a"]), Source(["b"]), Source(["a"], Resize(32)), Resize,
    Source,
    functools.partial(max, 1), functools.partial(max, 2), functools.partial(min, 1), len, max, "abc".upper, "abd".upper,
    np.add, np.multiply, json.dumps, json, Resize(3).__call__, Resize(4).__call__, float("inf"), 10**30, "\ud800",
]


def test_different_values_differ():
    prints = [fingerprint(value) for value in DIFFERENT]
    assert len(set(prints)) == len(DIFFERENT)


@pytest.mark.parametrize("one, other", [
    ("f = lambda x: x + 1", "f = lambda x: x + 2"),
    ("f = lambda x: x + 1", "f = lambda x: x - 1"),
    ("def f(x): return x.upper()", "def f(x): return x.lower()"),
    ("def f(x, y=1): return x", "def f(x, y=2): return x"),
    ("def f(x, *, y=1): return x", "def f(x, *, y=2): return x"),
    ("a = 1\ndef f(x): return x + a", "a = 2\ndef f(x): return x + a"),
    ("def g(a): return lambda x: x + a\nf = g(1)", "def g(a): return lambda x: x + a\nf = g(2)"),
    ("def h(x): return x\ndef f(x): return h(x)", "def h(x): return -x\ndef f(x): return h(x)"),
    ("def f(x):\n def g(y): return y + 1\n return g(x)", "def f(x):\n def g(y): return y + 2\n return g(x)"),
    ("class A:\n k = 1\nf = A()", "class A:\n k = 2\nf = A()"),
    ("class A:\n def m(self): return 1\nf = A()", "class A:\n def m(self): return 2\nf = A()"),
    ("class A:\n def m(self): return 1\nclass B(A): pass\nf = B()",
     "class A:\n def m(self): return 2\nclass B(A): pass\nf = B()"),
    ("class A:\n @property\n def m(self): return 1\nf = A", "class A:\n @property\n def m(self): return 2\nf = A"),
    ("class A:\n @staticmethod\n def m(): return 1\nf = A", "class A:\n @staticmethod\n def m(): return 2\nf = A"),
    ("def f(x):\n try: return x()\n except ValueError: return 1",
     "def f(x):\n try: return x()\n except KeyError: return 1"),
])
def test_changed_code_is_noticed(one, other):
    assert of_code(one) == of_code(one)
    assert of_code(one) != of_code(other)


def test_what_does_not_matter_is_ignored():
    assert of_code("def f(x): return x") == of_code("# comment\n\n\ndef f(x):\n    return x  # the same")
    assert of_code("a = 1\ndef f(x): return x") == of_code("a = 2\ndef f(x): return x")  # not used
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    shared = ["x", "y"]
    assert fingerprint([shared, shared, 1.5j]) == fingerprint([["x", "y"], ["x", "y"], 1.5j])
    assert fingerprint(["".join(["a", "b"])]) == fingerprint(["ab"])
    big = np.arange(100)
    assert fingerprint(big[::2]) == fingerprint(big[::2].copy())


def test_cycles_and_recursion_end():
    loop = [1, 2j]
    loop.append(loop)
    assert fingerprint(loop) != fingerprint([1, 2j])
    assert of_code("def f(n): return n and f(n - 1)")


def test_an_own_fingerprint_is_taken():
    class Mine:
        def __init__(self, version):
            self.version, self.lock = version, threading.Lock()

        def __libcache_fingerprint__(self):
            return self.version

    assert fingerprint(Mine(1)) == fingerprint(Mine(1)) != fingerprint(Mine(2))


@pytest.mark.parametrize("value, where", [
    (threading.Lock(), "dataset.transform"), (io.BytesIO(), "dataset.transform"), ((i for i in "ab"), "key="),
    (random.Random(1), "random"), (np.random.default_rng(1), "random"), (np.random.RandomState(1), "random"),
    ({"deep": [threading.Lock()]}, r"dataset.transform\['deep'\]\[0\]"),
    (lambda x, lock=threading.Lock(): x, "default"), (sys.stdout, "key="),
])
def test_what_cannot_be_fingerprinted_is_refused_with_the_way_out(value, where):
    with pytest.raises(FingerprintError, match=where) as caught:
        fingerprint(Source(["a"], value), "dataset")
    assert "key='...'" in str(caught.value)


def test_a_captured_value_is_named():
    lock = threading.Lock()
    with pytest.raises(FingerprintError, match="lock, captured by"):
        fingerprint(lambda x: lock)


def test_a_million_files_are_no_more_than_a_walk(tmp_path):
    """No file is looked at: the names alone, which do not exist."""
    files = [(f"/nowhere/{i:07}.jpg", i % 1000) for i in range(1_000_000)]
    one = fingerprint(Source(files))
    files[567_890] = ("/nowhere/other.jpg", 890)
    assert fingerprint(Source(files)) != one


def test_torch_values():
    torch = pytest.importorskip("torch", reason="python3-torch is not installed: no fingerprint of tensors")
    values = [torch.arange(3), torch.arange(3.0), torch.arange(3).view(3, 1), torch.tensor(1), torch.tensor(2),
              torch.float32, torch.int8, torch.nn.Linear, torch.relu, torch.zeros(0)]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint(torch.arange(6)[::2]) == fingerprint(torch.tensor([0, 2, 4]))
    with pytest.raises(FingerprintError, match="random"):
        fingerprint(torch.Generator())


def test_torchvision_data_sets(tmp_path):
    torchvision = pytest.importorskip("torchvision", reason="python3-torchvision is not installed")
    Image = pytest.importorskip("PIL.Image", reason="python3-pil is not installed")
    from torchvision import transforms
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / name)

    def of(*steps):
        return fingerprint(torchvision.datasets.ImageFolder(str(tmp_path), transform=transforms.Compose(steps)))
    assert of(transforms.Resize(8)) == of(transforms.Resize(8))
    assert len({of(), of(transforms.Resize(8)), of(transforms.Resize(9)), of(transforms.ToTensor()),
                of(transforms.Resize(8), transforms.ToTensor())}) == 5
    before = of()
    Image.new("L", (4, 4)).save(tmp_path / "b/4.png")
    assert of() != before
