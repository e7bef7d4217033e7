# SPDX-License-Identifier: Apache-2.0
"""The generator that random operations draw from: of the row at hand, so that an order of threads changes nothing."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np

_local = threading.local()
_outside = np.random.default_rng()


def generator() -> np.random.Generator:
    """The one of the row that this thread works on; outside of pipelines one that differs from run to run."""
    return getattr(_local, "rng", None) or _outside


@contextlib.contextmanager
def row(key: tuple[int, ...]) -> Iterator[None]:
    """Within it this thread works on the row that `key` names."""
    _local.rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
    try:
        yield
    finally:
        _local.rng = None
