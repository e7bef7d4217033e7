# SPDX-License-Identifier: Apache-2.0
"""The code in the README runs as it stands there, and does what the words beside it say."""
import itertools
import re
import warnings
from pathlib import Path

import libcache
import numpy as np
import pytest

from conftest import ROOT
from dataset_files import mnist, pictures, rows_of
from readme import BLOCKS, README, block, run_python, run_shell


def test_every_block_is_run_by_a_test():
    """Here, or in the test of what it takes: pip, MindSpore."""
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    asked_for = re.findall(r'\bblock\("([^"]+)"\)', tests)
    indented = re.findall(r"^    .*", README.read_text(encoding="utf-8"), re.M)
    assert [line.strip() for line in indented] == [line.strip() for text in BLOCKS for line in text.splitlines() if line]
    assert [text for text in BLOCKS if not any(text.startswith(beginning) for beginning in asked_for)] == []


def test_rows_are_put_and_got(server):
    made = run_python(block("import libcache, numpy as np"))
    assert made["image"].shape == (28, 28) and made["label"] == 3 and made["batch"].shape == (2, 28, 28)
    assert not made["image"].flags.writeable
    made["session"].destroy()


def test_a_builder_that_was_interrupted_is_followed_by_another(session):
    code = block("with session.open(2, build=True)")
    rows = [(f"row {i}", i) for i in range(9)]

    def breaks_at_4():
        yield from rows[:4]
        raise OSError("the source is gone")
    with pytest.raises(OSError, match="the source is gone"):
        run_python(code, session=session, source=breaks_at_4(), itertools=itertools)
    with session.open(2, build=True) as cache:
        assert len(cache) == 4
        run_python(code, session=session, source=rows, itertools=itertools)
        cache.wait()
        assert [(text, int(label)) for text, label in cache.get_many(range(9))] == rows


def test_make_knows_the_target():
    commands = re.findall(r"^make .*?(?=\s+#|$)", block("make python"), re.M)  # pip: test_install.py
    assert commands == ["make python"] and "setup.py" in (ROOT / "bindings" / "python" / "python.mk").read_text()


# ---- for PyTorch -------------------------------------------------------------------------------------------------------
@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="no python3-torch (make deps-torch): what the README shows of it is not tested")


def cached_numbers(torch, rows, session):
    from libcache.torch import CachedDataset
    source = torch.utils.data.TensorDataset(torch.arange(rows), torch.arange(rows) % 10)
    return CachedDataset(source, session)


def test_one_line_is_enough(torch, no_server, tmp_path, monkeypatch, capfd):
    torchvision = pytest.importorskip("torchvision", reason="no python3-torchvision (make deps-torch)")
    pictures(tmp_path / "train")
    monkeypatch.chdir(tmp_path)
    train = run_python(block("from libcache.torch import CachedDataset"), torchvision=torchvision,
                       augment=torchvision.transforms.RandomCrop(8))["train"]
    assert "cache_admin --stop" in capfd.readouterr().err  # a server was started, and it is said so
    assert all(train[i][0].size == (8, 8) for i in range(6)) and len(train.cache) == 6
    assert no_server.stop()


def test_rows_that_do_not_fit_go_to_disk(torch, no_server, tmp_path):
    from libcache.torch import CachedDataset
    from torch_sources import Listed
    command, code = block("cache_admin --start -s").splitlines()
    (tmp_path / "spilled").mkdir()
    run_shell(command, tmp_path, ("/scratch/cache", tmp_path / "spilled"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # who does not get what it asked for is warned
        train = run_python(code, CachedDataset=CachedDataset, dataset=Listed([np.zeros(10)] * 4))["train"]
    assert len(train.cache) == 1  # without a folder for spilled rows it would have raised NotSupported


def test_an_epoch_of_60000_rows_of_which_one_was_missing(torch, session, capsys):
    code = block("before = train.cache_stats()")
    train = cached_numbers(torch, 60_000, session)
    for first in range(0, 59_999, 1000):
        train.__getitems__(range(first, min(first + 1000, 59_999)))
    run_python(code, train=train, loader=torch.utils.data.DataLoader(train, 1000))
    assert capsys.readouterr().out.strip() == code.rpartition("# ")[2].strip()


@pytest.mark.parametrize("line", block("CachedLoader(train, 64").splitlines())
def test_loaders(torch, session, line):
    import libcache.torch
    train = cached_numbers(torch, 300, session)
    names = {"train": train, "libcache": libcache, "CachedLoader": libcache.torch.CachedLoader,
             "DataLoader": torch.utils.data.DataLoader}
    loader = run_python(f"loader = {line}", **names)["loader"]
    for _ in range(2):
        batches = list(loader)
        assert torch.cat([numbers for numbers, _ in batches]).sort().values.tolist() == list(range(300))
        assert all((labels == numbers % 10).all() for numbers, labels in batches)
    assert len(train.cache) == 300


# ---- for scripts for MindSpore's cache ---------------------------------------------------------------------------------
def test_a_script_for_mindspores_cache(no_server, tmp_path, monkeypatch):
    import libcache.dataset as ds
    (tmp_path / "spilled").mkdir()
    no_server.start("-s", tmp_path / "spilled")
    mnist(tmp_path / "mnist", 40)
    monkeypatch.chdir(tmp_path)
    session, named = libcache.Client().create_session(), ds.DatasetCache
    shown = {1456416665: session.id}  # the server chooses the id
    monkeypatch.setattr(ds, "DatasetCache", lambda session_id, **more: named(session_id=shown[session_id], **more))
    data = run_python(block("cache = ds.DatasetCache"), ds=ds)["data"]
    assert len(rows_of(data)) == 40
    (stats,) = session.caches()
    assert stats.rows_in_memory == 40
