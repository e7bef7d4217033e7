#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""P3, P4 and P5: loading and training with PyTorch, with and without a cache.

    python3 loading.py --plan                                      # what will run, and for how long
    cache_admin --run -- python3 loading.py [--only P3 P4 P5] [--repetitions N] [--epochs N] [--rows N] [--json FILE]

P3 compares an epoch on CachedDataset (a DataLoader with PyTorch's own collate, one through `rows` and `collate`, and a
CachedLoader) with a DataLoader's on a TensorDataset of the same tensors; with a transform, CachedLoader with DataLoader
on the same CachedDataset. P4 trains LeNet-5 on all of MNIST for some epochs, each mode in turns, the cached mode on an
empty cache each time. P5 decodes JPEG files, which come from the page cache: a slower source only widens the distance.
Nothing is copied to a GPU.
"""
import argparse
import sys
import time
from pathlib import Path

import torch
import torchvision
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchvision import transforms

import libcache
from libcache.torch import CachedDataset, CachedLoader, collate
from measure import Report, count, in_turns, need_server, parse_options

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import lenet_mnist as lenet  # noqa: E402

_MNIST = 60_000   # rows
_JPEG_TIMES = 5   # in one repetition: it is short


class Session:
    """A session for one measurement."""

    def __enter__(self):
        self.session = libcache.Client().create_session()
        return self.session

    def __exit__(self, *exception):
        self.session.destroy()


def epoch(loader):
    for _ in loader:
        pass


def flip(image):
    return image.flip(-1)


def measure_loading(report, options):
    images, labels = torch.rand(options.rows, 1, 28, 28), torch.arange(options.rows) % 10
    plain = TensorDataset(images, labels)
    with Session() as session:
        cached = CachedDataset(plain, session)
        epoch(DataLoader(cached, 64))
        for workers in (0, 2):
            how = {"batch_size": 64, "shuffle": True, "num_workers": workers}
            seconds = in_turns(options.repetitions, floor=lambda _: epoch(DataLoader(plain, **how)),
                               ours=lambda _: epoch(DataLoader(cached.rows, collate_fn=collate, **how)),
                               loader=lambda _: epoch(CachedLoader(cached, **how)),
                               default=lambda _: epoch(DataLoader(cached, **how)))
            for row, name in (("DataLoader", "default"), ("`rows`, `collate`", "ours"), ("CachedLoader", "loader")):
                report.add(f"P3 epoch, {workers} workers, {row}", seconds[name], seconds["floor"], 1, "s", "<= 1.1")
        flipped = CachedDataset(plain, session, transform=flip)
        seconds = in_turns(options.repetitions, floor=lambda _: epoch(DataLoader(flipped, **how)),
                           ours=lambda _: epoch(CachedLoader(flipped, **how)))
        report.add("with transform=, 2 workers, CachedLoader beside DataLoader", seconds["ours"], seconds["floor"], 1,
                   "s", "-")


def opened(name, open_data):
    """A data set of the test data."""
    return lenet.training.open_or_exit(open_data, lenet.training.default_data(name),
                                       f"LIBCACHE_TEST_DATA names the folder with {name} in it")


def lenet_epochs(source, session, epochs):
    """Seconds of each epoch, loading included."""
    torch.manual_seed(1)
    model = lenet.lenet5()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    started = time.perf_counter()
    data = source if session is None else CachedDataset(source, session)
    seconds = []
    for _ in range(epochs):
        lenet.training.train_epoch(model, DataLoader(data, 64, shuffle=True), optimizer, "P4")
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
    return seconds


def measure_lenet(report, options):
    steps = transforms.Compose([transforms.Resize(32), transforms.ToTensor(),
                                transforms.Normalize((0.1307,), (0.3081,))])
    source = opened("mnist", lambda folder: lenet.Mnist(folder, "train", steps))
    if options.rows < len(source):
        source = Subset(source, range(options.rows))
    lenet_epochs(Subset(source, range(256)), None, 1)  # what PyTorch does once, at its first steps
    ours, floor = [], []
    for _ in range(options.repetitions):
        with Session() as session:
            ours.append(lenet_epochs(source, session, options.epochs))
        floor.append(lenet_epochs(source, None, options.epochs))
    report.add(f"P4 LeNet, {options.epochs} epochs", [sum(run) for run in ours], [sum(run) for run in floor], 1, "s",
               "<= 0.90")
    report.add("P4 LeNet, first epoch", [run[0] for run in ours], [run[0] for run in floor], 1, "s", "<= 1.02")


def measure_jpeg(report, options):
    source = opened("cifar10-jpeg", lambda folder: torchvision.datasets.ImageFolder(str(folder / "train"),
                                                                                    transforms.ToTensor()))
    epoch(DataLoader(source, 64))  # the files into the page cache
    seconds = {name: [] for name in ("floor", "first", "default", "collate", "loader")}
    for _ in range(_JPEG_TIMES * options.repetitions):
        with Session() as session:
            cached = []
            bodies = {"floor": lambda _: epoch(DataLoader(source, 64)),
                      "first": lambda _: (cached.append(CachedDataset(source, session)),
                                          epoch(DataLoader(cached[0], 64))),
                      "default": lambda _: epoch(DataLoader(cached[0], 64, shuffle=True)),
                      "collate": lambda _: epoch(DataLoader(cached[0].rows, 64, shuffle=True, collate_fn=collate)),
                      "loader": lambda _: epoch(CachedLoader(cached[0], 64, shuffle=True))}
            for name, values in in_turns(1, **bodies).items():
                seconds[name] += values
    floor = seconds["floor"]
    report.add("P5 JPEG, epoch 1", seconds["first"], floor, 1, "s", "<= 1.05")
    for row, name in (("DataLoader", "default"), ("`rows`, `collate`", "collate"), ("CachedLoader", "loader")):
        report.add(f"P5 JPEG, epoch 2, {row}", seconds[name], floor, 1, "s", "<= 0.1")


# name: (function, what it runs in one repetition, seconds of that on 2 shared virtual processors, for all rows)
PARTS = {
    "P3": (measure_loading, "10 epochs of {rows} rows in memory or cached, 6 of them with 2 workers",
           lambda options: 1 + 9 * options.rows / _MNIST),
    "P4": (measure_lenet, "{epochs} epochs of LeNet-5 on {rows} rows of MNIST, and {epochs} with an empty cache",
           lambda options: (14 + 13 + 23 * (options.epochs - 1)) * options.rows / _MNIST),
    "P5": (measure_jpeg, f"{_JPEG_TIMES} times 2,000 JPEG files decoded, decoded and cached, and 3 cached epochs",
           lambda options: 0.5 * _JPEG_TIMES),
}


def print_plan(options):
    total = 0.0
    for name in options.only:
        _, what, seconds_of = PARTS[name]
        seconds = options.repetitions * seconds_of(options)
        print(f"{name}: {options.repetitions} repetitions, about {seconds:.0f} s in all, of "
              f"{what.format(**vars(options))}")
        total += seconds
    print(f"about {total / 60:.1f} minutes in all on 2 shared virtual processors that do nothing else")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="tell what would run, and for how long, and end")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS), help="parts")
    parser.add_argument("--repetitions", type=count, default=5, help="of each part; at least 5 for a published page")
    parser.add_argument("--epochs", type=count, default=5, help="of P4")
    parser.add_argument("--rows", type=count, default=_MNIST, help="of P3 and P4; fewer, to see that all of it runs")
    parser.add_argument("--json", help="file for all repetitions")
    options = parse_options(parser)
    if options.plan:
        print_plan(options)
        return
    need_server()
    report = Report()
    for name in options.only:
        PARTS[name][0](report, options)
    report.write(options.json)


if __name__ == "__main__":
    main()
