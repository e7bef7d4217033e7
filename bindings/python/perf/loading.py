#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""P3, P4 and P5: loading and training with PyTorch, with and without a cache.

    cache_admin --run -- python3 loading.py [--only P3 P4 P5] [--repetitions N] [--json FILE]

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
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms

import libcache
from libcache.torch import CachedDataset, CachedLoader, collate
from measure import Report, in_turns

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
import lenet_mnist as lenet  # noqa: E402


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


def measure_loading(report, repetitions):
    images, labels = torch.rand(60_000, 1, 28, 28), torch.arange(60_000) % 10
    plain = TensorDataset(images, labels)
    with Session() as session:
        cached = CachedDataset(plain, session)
        epoch(DataLoader(cached, 64))
        for workers in (0, 2):
            options = {"batch_size": 64, "shuffle": True, "num_workers": workers}
            seconds = in_turns(repetitions, floor=lambda _: epoch(DataLoader(plain, **options)),
                               ours=lambda _: epoch(DataLoader(cached.rows, collate_fn=collate, **options)),
                               loader=lambda _: epoch(CachedLoader(cached, **options)),
                               default=lambda _: epoch(DataLoader(cached, **options)))
            for row, name in (("CachedLoader", "loader"), ("collate", "ours"), ("default", "default")):
                report.add(f"P3 epoch, {workers} workers, {row}", seconds[name], seconds["floor"], 1, "s", "<= 1.1")
        flipped = CachedDataset(plain, session, transform=flip)
        seconds = in_turns(repetitions, floor=lambda _: epoch(DataLoader(flipped, **options)),
                           ours=lambda _: epoch(CachedLoader(flipped, **options)))
        report.add("   transform, 2 workers, CachedLoader", seconds["ours"], seconds["floor"], 1, "s", "-")


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


def measure_lenet(report, repetitions, epochs):
    steps = transforms.Compose([transforms.Resize(32), transforms.ToTensor(),
                                transforms.Normalize((0.1307,), (0.3081,))])
    source = lenet.Mnist(lenet.training.default_data("mnist"), "train", steps)
    ours, floor = [], []
    for _ in range(repetitions):
        with Session() as session:
            ours.append(lenet_epochs(source, session, epochs))
        floor.append(lenet_epochs(source, None, epochs))
    report.add(f"P4 LeNet, {epochs} epochs", [sum(run) for run in ours], [sum(run) for run in floor], 1, "s", "<= 0.90")
    report.add("P4 LeNet, first epoch", [run[0] for run in ours], [run[0] for run in floor], 1, "s", "<= 1.02")


def measure_jpeg(report, repetitions):
    folder = lenet.training.default_data("cifar10-jpeg") / "train"
    source = torchvision.datasets.ImageFolder(str(folder), transforms.ToTensor())
    epoch(DataLoader(source, 64))  # the files into the page cache
    seconds = {name: [] for name in ("floor", "first", "default", "collate", "loader")}
    for _ in range(repetitions):
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
    report.add("P5 JPEG, epoch 2, default", seconds["default"], floor, 1, "s", "<= 0.1")
    report.add("P5 JPEG, epoch 2, collate", seconds["collate"], floor, 1, "s", "<= 0.1")
    report.add("P5 JPEG, epoch 2, CachedLoader", seconds["loader"], floor, 1, "s", "<= 0.1")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["P3", "P4", "P5"], choices=["P3", "P4", "P5"])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5, help="of P4")
    parser.add_argument("--json", help="file for all repetitions")
    options = parser.parse_args()
    report = Report()
    if "P3" in options.only:
        measure_loading(report, options.repetitions)
    if "P4" in options.only:
        measure_lenet(report, options.repetitions, options.epochs)
    if "P5" in options.only:
        measure_jpeg(report, options.repetitions)
    report.write(options.json)


if __name__ == "__main__":
    main()
