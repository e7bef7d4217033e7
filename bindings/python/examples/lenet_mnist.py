#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with PyTorch, with and without a cache: the training that the original system was shown with.

    export SESSION_ID=$(cache_admin -g | awk 'END {print $NF}')    # or leave it out: CachedDataset finds a session
    python3 lenet_mnist.py --cache
    python3 lenet_mnist.py --no-cache

The one line that differs is `train_set = CachedDataset(train_set)` in training.py.
"""
import gzip

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms

import training


class Mnist(Dataset):
    """(picture, label) of the IDX files as they are distributed, packed with gzip."""

    def __init__(self, folder, name, transform):
        with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
            self.images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
        with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
            self.labels = np.frombuffer(file.read(), np.uint8, offset=8)
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


def lenet5():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def main():
    options = training.parse_options(__doc__.splitlines()[0], training.default_data("mnist"), epochs=5)
    steps = transforms.Compose([transforms.Resize(32), transforms.ToTensor(),
                                transforms.Normalize((0.1307,), (0.3081,))])
    data = training.open_or_exit(lambda folder: [Mnist(folder, name, steps) for name in ("train", "t10k")], options.data)
    torch.manual_seed(options.seed)
    training.train(options, lenet5(), *data)


if __name__ == "__main__":
    main()
