# SPDX-License-Identifier: Apache-2.0
"""Shuffle: what a source of several files shuffles."""
import enum


class Shuffle(str, enum.Enum):
    """For shuffle= of TFRecordDataset."""

    GLOBAL = "global"  #: files and rows
    FILES = "files"    #: files
