#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a directory of files in a loop of epochs, as a trainer does, without a framework.

    fill_and_train.py DIRECTORY [EPOCHS [PROCESSES]]

(libcache.torch does all of this for a PyTorch data set.) A file comes from the cache, or on a miss from the disk and
then into the cache, for the next epoch and for every other process that trains on the same files meanwhile: those that
this one starts, and any other. The cache only ever helps: when it is full, dropped or away, training goes on.
"""
import argparse
import hashlib
import multiprocessing
import os
import sys
from pathlib import Path

import numpy as np

import libcache


def train(data):
    """Stands for a training step: looks at every byte."""
    return int(np.frombuffer(data, np.uint8).sum(dtype=np.uint64))


def warn(error, what_next):
    print(f"{error}: {what_next}", file=sys.stderr, flush=True)


class Rows:
    """The cache, as long as it is of use."""

    def __init__(self, files):
        facts = [(file.name, status.st_size, status.st_mtime_ns) for file in files for status in [file.stat()]]
        self.fingerprint = hashlib.sha256(repr(facts).encode()).hexdigest()
        self.open()

    def open(self):
        """Whoever names the same session and cache id shares the cache. The id comes from the files' names, sizes and
        times, so that a changed directory is another cache; the tag tells two apart that have the same id."""
        self.full = False  # it takes no more rows, but still gives those it has
        try:
            session = libcache.Client().open_session("fill_and_train")
            self.cache = session.open(int(self.fingerprint[:8], 16), tag=self.fingerprint, label="Python")
        except libcache.Error as error:
            self.cache = None
            warn(error, "going on without a cache")

    def handle(self, error):
        """Decides what a failed call means for the rest of the run."""
        if isinstance(error, libcache.Full):  # rows are never evicted: what is in stays, the rest comes from the disk
            self.full = True
            warn(error, "the rest is read from the disk")
        elif isinstance(error, libcache.Gone):  # somebody dropped the session, perhaps to make room
            warn(error, "opening a new cache")
            self.open()
        else:  # no server any more, or a fault: no reason to stop training
            warn(error, "going on without a cache")
            self.cache = None

    def read(self, row_id):
        """What training makes of a row that is there; None: a miss."""
        try:
            row = self.cache.get(row_id) if self.cache else None
        except libcache.Error as error:
            self.handle(error)
            return None
        return None if row is None else train(row[0])  # where it lies: nothing is copied

    def fill(self, row_id, path):
        """A miss: reads the file straight into the cache's memory if it may, else into memory of its own."""
        size = path.stat().st_size
        try:
            room = self.cache.reserve(row_id, ("uint8", size)) if self.cache and not self.full else None
        except libcache.Error as error:
            self.handle(error)
            room = None
        if room is None:  # no room, or another process was faster
            return train(path.read_bytes())
        with room, path.open("rb", buffering=0) as file:  # commits at the end; an exception aborts: no half row is seen
            if file.readinto(room.columns[0]) != size:
                raise EOFError(f"{path} was not read to its end")
            return train(room.columns[0])


def train_epochs(files, epochs, process, processes):
    """Every file once an epoch. Each process begins elsewhere, so that they share the first epoch's work."""
    rows = Rows(files)
    first = len(files) * process // processes
    for epoch in range(1, epochs + 1):
        total = hits = 0
        for row_id in [*range(first, len(files)), *range(first)]:
            found = rows.read(row_id)
            hits += found is not None
            total += rows.fill(row_id, files[row_id]) if found is None else found
        sys.stdout.write(  # in one piece, whatever the other processes print
            f"epoch {epoch}: {hits} rows from the cache, {len(files) - hits} from the disk, sum {total}\n")
        sys.stdout.flush()


def train_or_say(*what):
    """A source that cannot be read ends the training; a cache that cannot be used never does."""
    try:
        train_epochs(*what)
    except (OSError, EOFError) as error:
        sys.exit(str(error))


def number(text):
    """Of epochs or processes: at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", metavar="DIRECTORY", help="each file in it is a row")
    parser.add_argument("epochs", metavar="EPOCHS", nargs="?", type=number, default=3, help="3, unless given")
    parser.add_argument("processes", metavar="PROCESSES", nargs="?", type=number, default=1, help="1, unless given")
    options = parser.parse_args()
    try:  # row i is the same for all
        files = sorted(Path(entry.path) for entry in os.scandir(options.directory) if entry.is_file())
    except OSError as error:
        return f"the files of {options.directory} cannot be listed: {error.strerror}"
    others = [multiprocessing.Process(target=train_or_say, args=(files, options.epochs, process, options.processes))
              for process in range(1, options.processes)]
    for other in others:
        other.start()
    train_or_say(files, options.epochs, 0, options.processes)
    for other in others:
        other.join()
    return int(any(other.exitcode != 0 for other in others))


if __name__ == "__main__":
    sys.exit(main())
