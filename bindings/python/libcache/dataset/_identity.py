# SPDX-License-Identifier: Apache-2.0
"""Which pipelines have the same rows: a fingerprint of everything below a cache."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._fingerprint import FingerprintError, fingerprint

if TYPE_CHECKING:
    from ._pipeline import Dataset

_FORMAT = "libcache.dataset 1"


def identity(cached: "Dataset") -> str:
    """64 hex digits: files, parameters, operations and their code. Not workers, samplers, shards, number of samples,
    nor a shuffle, which come to bear after the cache."""
    parts: list[Any] = [_FORMAT]
    parts += [part for node in cached._nodes() if (part := node._identity()) is not None]
    try:
        return fingerprint(parts, "pipeline")
    except FingerprintError as error:
        raise FingerprintError(f"{error}. (Under a cache of libcache.dataset there is no key=: give the object's class "
                               f"a method __libcache_fingerprint__ that returns what makes its result.)") from error
