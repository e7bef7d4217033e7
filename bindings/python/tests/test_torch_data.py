# SPDX-License-Identifier: Apache-2.0
"""Real data through DataLoader with every count of workers, and the examples."""
import io
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="python3-torch is not installed (make deps-torch): no test of real data")
torchvision = pytest.importorskip("torchvision", reason="python3-torchvision is not installed (make deps-torch)")
from torch.utils.data import DataLoader, Subset  # noqa: E402
from torchvision import transforms  # noqa: E402

from conftest import ADMIN, DATA  # noqa: E402
import libcache  # noqa: E402
from libcache.torch import CachedDataset, cached_loader, collate  # noqa: E402

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))


class Counting:
    """A loader= for ImageFolder, or any step, that counts its calls in a file."""

    def __init__(self, log, step):
        self.log, self.step = log, step

    def __call__(self, value):
        with open(self.log, "ab") as log:
            log.write(b".")
        return self.step(value)

    def __libcache_fingerprint__(self):
        return "counting"

    @property
    def count(self):
        return os.path.getsize(self.log) if os.path.exists(self.log) else 0


def needs(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"no data in {DATA / name} (set LIBCACHE_TEST_DATA)")
    return DATA / name


def everything(loader, rows):
    labels = torch.full((rows,), -1)
    sums = torch.zeros(rows, dtype=torch.float64)
    place = 0
    for images, labels_of_batch in loader:
        n = len(labels_of_batch)
        labels[place:place + n] = labels_of_batch
        sums[place:place + n] = images.double().flatten(1).sum(1)
        place += n
    assert place == rows
    return labels, sums


@pytest.fixture(scope="module")
def filled(server):
    return {}


@pytest.mark.parametrize("workers", range(9))
def test_mnist(server, filled, workers, tmp_path_factory):
    from lenet_mnist import Mnist
    folder = needs("mnist")
    rows = 10_000
    if not filled:
        counting = Counting(str(tmp_path_factory.mktemp("mnist") / "reads"), transforms.ToTensor())
        source = Mnist(folder, "t10k", counting)
        plain = torch.from_numpy(np.array(source.images)).double().flatten(1).sum(1) / 255
        filled.update(counting=counting, plain=plain, labels=torch.from_numpy(np.array(source.labels)).long(),
                      cached=CachedDataset(source, libcache.Client().create_session()))
    cached = filled["cached"]
    data = cached.rows if workers % 2 else cached  # both ways of loading
    labels, sums = everything(DataLoader(data, 128, num_workers=workers, collate_fn=collate), rows)
    assert (labels == filled["labels"]).all()
    torch.testing.assert_close(sums, filled["plain"], rtol=1e-5, atol=1e-3)
    assert filled["counting"].count == rows + 1 and len(cached.cache) == rows


@pytest.mark.parametrize("workers", range(9))
def test_jpeg_files(session, workers, tmp_path):
    folder = needs("cifar10-jpeg") / "test"
    counting = Counting(str(tmp_path / "reads"), torchvision.datasets.folder.default_loader)
    source = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor(), loader=counting)
    cached = CachedDataset(source, session)
    plain = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor())
    plain = everything(DataLoader(plain, 50), len(source))
    for data in (cached, cached.rows):
        labels, sums = everything(DataLoader(data, 50, num_workers=workers, collate_fn=collate), len(source))
        assert (labels == plain[0]).all() and (sums == plain[1]).all()
        assert counting.count == len(source) + 1
    assert cached.classes == source.classes


def test_a_picture_stays_a_picture(session):
    source = torchvision.datasets.ImageFolder(str(needs("cifar10-jpeg") / "test"))
    cached = CachedDataset(source, session, transform=transforms.RandomCrop(24))
    few = Subset(cached, range(0, 500, 50))
    for _ in range(2):
        for image, label in few:
            assert image.size == (24, 24) and image.mode == "RGB" and 0 <= label < 10
    assert cached._sample(50)[0].tobytes() == source[50][0].tobytes()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cached_loader_keeps_the_encoded_files(session, workers, tmp_path):
    folder = shutil.copytree(needs("cifar10-jpeg") / "test", tmp_path / "copy", copy_function=os.symlink)
    loader = cached_loader(session)
    source = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor(), loader=loader)
    plain = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor())
    first = everything(DataLoader(source, 50, num_workers=workers), 500)
    assert (first[1] == everything(DataLoader(plain, 50), 500)[1]).all()
    stats = loader.cache.stat()
    assert stats.rows_in_memory == 500 and stats.row_bytes < 1 << 20  # decoded they are 1.5 MB
    for file in folder.glob("*/*.jpg"):
        file.unlink()
    again = everything(DataLoader(source, 50, num_workers=workers), 500)
    assert (again[0] == first[0]).all() and (again[1] == first[1]).all()
    copy = pickle.loads(pickle.dumps(loader))
    assert copy(source.samples[7][0]).size == (32, 32)
    with pytest.raises(FileNotFoundError):
        loader(str(tmp_path / "none.jpg"))


def test_hits_look_at_no_file(session, tmp_path):
    """Neither does a data set that is made anew of the same list: a stat or HEAD per file costs as much as the file."""
    folder = shutil.copytree(needs("cifar10-jpeg") / "test", tmp_path / "copy", copy_function=os.symlink)
    source = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor())
    first = everything(DataLoader(CachedDataset(source, session), 50), len(source))
    shutil.rmtree(folder)
    again = everything(DataLoader(CachedDataset(source, session), 50), len(source))
    assert (again[0] == first[0]).all() and (again[1] == first[1]).all()
    with pytest.raises(FileNotFoundError):
        source[0]


def write_over(path, like):
    """Puts the picture of another file there, under the old name and with a later time, as an editor does."""
    before = os.stat(path).st_mtime_ns
    Path(path).write_bytes(Path(like).read_bytes())
    os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_is_written_over_is_noticed_with_verify(session, tmp_path, workers):
    """Without it, it is not: that costs a stat per file. The other rows still come from the cache."""
    folder = shutil.copytree(needs("cifar10-jpeg") / "test", tmp_path / "copy")
    counting = Counting(str(tmp_path / "reads"), torchvision.datasets.folder.default_loader)

    def read(**options):
        source = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor(), loader=counting)
        return everything(DataLoader(CachedDataset(source, session, **options), 50, num_workers=workers), 500)[1]
    read()
    before = read(verify="stat")
    paths = [path for path, _ in torchvision.datasets.ImageFolder(str(folder)).samples]
    write_over(paths[7], paths[300])
    reads = counting.count
    assert (read() == before).all() and counting.count == reads
    for _ in range(2):
        after = read(verify="stat")
        assert after[7] == before[300] != before[7] and (after != before).sum() == 1
    assert counting.count == reads + 2


def test_a_cached_loader_notices_it_with_verify(session, tmp_path):
    folder = shutil.copytree(needs("cifar10-jpeg") / "test", tmp_path / "copy")
    paths = [path for path, _ in torchvision.datasets.ImageFolder(str(folder)).samples]
    plain, careful = cached_loader(session), cached_loader(session, verify="stat")
    for loader in (plain, careful, pickle.loads(pickle.dumps(careful))):
        first, other = loader(paths[7]).tobytes(), loader(paths[300]).tobytes()
    write_over(paths[7], paths[300])
    assert plain(paths[7]).tobytes() == first
    assert careful(paths[7]).tobytes() == other == careful(paths[7]).tobytes()
    assert len(careful.cache) == len(plain.cache) == 2
    os.unlink(paths[300])
    assert plain(paths[300]).tobytes() == other
    with pytest.raises(FileNotFoundError):
        careful(paths[300])
    with pytest.raises(ValueError, match="verify"):
        cached_loader(session, verify="size")


# ---- the examples --------------------------------------------------------------------------------------------------


def example(name, *options):
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *options], capture_output=True, text=True, timeout=250,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # other tests run beside this one
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(text):
    return re.findall(r"loss (\S+),", text)


def test_a_progress_bar_is_shown_on_a_terminal_only(monkeypatch):
    from training import Bar
    shown = []
    for terminal in (True, False):
        screen = io.StringIO()
        screen.isatty = lambda: terminal
        monkeypatch.setattr(sys, "stderr", screen)
        bar = Bar(4, "epoch 1/2")
        for step in range(1, 5):
            bar.step(step, 0.5)
        shown.append(screen.getvalue())
    assert "epoch 1/2 [#######" in shown[0] and " 25 % loss 0.5000" in shown[0]
    assert shown[0].endswith("100 % loss 0.5000\n") and shown[1] == ""


def test_lenet_gives_the_same_losses_with_and_without_a_cache(server):
    needs("mnist")
    options = ["--rows", "1000", "--epochs", "2"]
    first, second = example("lenet_mnist.py", *options), example("lenet_mnist.py", *options, "--workers", "2")
    without = example("lenet_mnist.py", "--no-cache", *options)
    assert losses(first) == losses(second) == losses(without) and len(losses(first)) == 2
    assert "rows in the cache: 1000" in first and "cache" not in without
    assert float(re.search(r"accuracy (\S+) %", first).group(1)) > 30


def test_resnet_gives_the_same_losses_with_and_without_a_cache(server, tmp_path):
    folder = needs("cifar10-jpeg")
    for part, count in (("train", 2), ("test", 1)):  # of two classes: ResNet-50 is slow without a GPU
        for name in ("cat", "dog"):
            (tmp_path / part / name).mkdir(parents=True)
            for file in sorted((folder / part / name).iterdir())[:count]:
                (tmp_path / part / name / file.name).symlink_to(file)
    few = [example("resnet_cifar10.py", cache, "--epochs", "1", "--batch", "2", "--data", str(tmp_path))
           for cache in ("--cache", "--no-cache")]
    assert losses(few[0]) == losses(few[1]) and len(losses(few[0])) == 1
    assert "rows in the cache: 4" in few[0]


def test_resnet_reads_the_binary_format(server, tmp_path):
    rows = np.random.default_rng(0).integers(0, 10, (40, 3073), np.uint8)
    rows.tofile(tmp_path / "data_batch_1.bin")
    rows[:2].tofile(tmp_path / "test_batch.bin")
    said = example("resnet_cifar10.py", "--rows", "4", "--epochs", "1", "--batch", "2", "--data", str(tmp_path))
    assert "rows in the cache: 4" in said


def test_four_ranks_share_one_cache_in_which_each_row_is_once(no_server):
    needs("mnist")
    environment = {**os.environ, "CACHE_ADMIN": str(ADMIN), "PYTHON": sys.executable}
    done = subprocess.run(["sh", str(EXAMPLES / "distributed.sh"), "--rows", "1000", "--epochs", "2"],
                          capture_output=True, text=True, env=environment, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "rows in the cache: 1000," in done.stdout and len(losses(done.stdout)) == 2
