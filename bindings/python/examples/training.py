# SPDX-License-Identifier: Apache-2.0
"""What the examples share: options, an epoch with a progress bar, the accuracy at the end. Ranks started by
torch.distributed.run train one model together (gloo)."""
import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset

from libcache.torch import CachedDataset


def parse_options(about, data, epochs):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True,
                        help="read each row from its source once; the session is $SESSION_ID, else the user's own")
    parser.add_argument("--data", type=Path, default=data, help="folder of the data set")
    parser.add_argument("--epochs", type=at_least(1), default=epochs, help="times that each row is seen")
    parser.add_argument("--batch", type=at_least(1), default=64, help="rows per step and rank")
    parser.add_argument("--workers", type=at_least(0), default=0, help="loader workers per rank")
    parser.add_argument("--rows", type=at_least(0), default=0, help="train with the first rows only; 0: all")
    parser.add_argument("--seed", type=at_least(0), default=1, help="the same seed gives the same losses")
    if os.environ.get("RANK", "0") != "0":
        parser.error = lambda message: sys.exit(2)  # the first rank says it
    return parser.parse_args()


def at_least(least):
    """A type of add_argument()."""
    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)
    return number


def open_or_exit(open_data, folder, otherwise="--data names another folder"):
    """What open_data(folder) gives; without the files, a sentence of the first rank instead of a traceback."""
    try:
        return open_data(folder)
    except (OSError, ValueError) as error:
        sentence = f"{Path(sys.argv[0]).name}: the data set in {folder} cannot be read ({error}); {otherwise}"
        sys.exit(sentence if os.environ.get("RANK", "0") == "0" else 1)


def default_data(name):
    """The folder of $LIBCACHE_TEST_DATA, else of shared/data beside the source tree."""
    root = os.environ.get("LIBCACHE_TEST_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data"
    return Path(root) / name


class Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, total, what):
        self.total, self.what, self.shown = max(1, total), what, sys.stderr.isatty() and rank() == 0

    def step(self, done, loss):
        if self.shown:
            filled = 30 * done // self.total
            shown = f"[{'#' * filled}{'.' * (30 - filled)}] {100 * done // self.total:3d} %"
            print(f"\r{self.what} {shown} loss {loss:.4f}",
                  end="" if done < self.total else "\n", file=sys.stderr, flush=True)


def rank():
    return distributed.get_rank() if distributed.is_initialized() else 0


def say(text):
    if rank() == 0:
        print(text, flush=True)


def train(options, model, train_set, test_set):
    """Trains and returns the accuracy on the test set in per cent."""
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    if options.cache:
        train_set = CachedDataset(train_set)
    rows = Subset(train_set, range(options.rows)) if options.rows else train_set
    torch.manual_seed(options.seed)
    sampler = DistributedSampler(rows, seed=options.seed) if distributed.is_initialized() else None
    loader = DataLoader(rows, options.batch, shuffle=sampler is None, sampler=sampler, num_workers=options.workers,
                        generator=torch.Generator().manual_seed(options.seed))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, options.epochs + 1):
        if sampler is not None:
            sampler.set_epoch(epoch)
        started = time.perf_counter()
        loss = train_epoch(model, loader, optimizer, f"epoch {epoch}/{options.epochs}")
        say(f"epoch {epoch}: loss {loss:.10f}, {time.perf_counter() - started:.2f} s")
    correct = accuracy(model, DataLoader(test_set, 256)) if rank() == 0 else 0.0
    say(f"test accuracy {correct:.2f} %")
    if options.cache and train_set.cache is not None:
        if distributed.is_initialized():
            distributed.barrier()
        say(f"rows in the cache: {len(train_set.cache)}, session {train_set.cache.session.id}")
    return correct


def train_epoch(model, loader, optimizer, what):
    """The mean loss of the steps."""
    model.train()
    bar, total, loss_of = Bar(len(loader), what), 0.0, nn.CrossEntropyLoss()
    for step, (images, labels) in enumerate(loader, 1):
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
        bar.step(step, loss.item())
    return total / max(1, len(loader))


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = count = 0
    for images, labels in loader:
        right += int((model(images).argmax(1) == labels).sum())
        count += len(labels)
    return 100 * right / max(1, count)
