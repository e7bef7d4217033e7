#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""ResNet-50 on CIFAR-10 with PyTorch, with and without a cache.

    python3 resnet_cifar10.py --data cifar-10-batches-bin    # the binary files as they are distributed
    python3 resnet_cifar10.py --data cifar10-jpeg            # or train/<class>/*.jpg and test/<class>/*.jpg

Pictures are decoded once and cached as tensors; the random crop and flip come after the cache, so each epoch has new
ones.
"""
import numpy as np
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import Dataset
from torchvision import transforms

import training


class CifarBinary(Dataset):
    """(picture, label) of the binary version: rows of a label byte and 3 x 32 x 32 bytes."""

    def __init__(self, files, transform):
        self.rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
        self.transform = transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return self.transform(Image.fromarray(row[1:].reshape(3, 32, 32).transpose(1, 2, 0))), int(row[0])


class Augmented(nn.Module):
    """The model with the random part of the input in front of it, while it is trained."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.random = nn.Sequential(transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip())

    def forward(self, images):
        return self.model(self.random(images) if self.training else images)


def open_data(folder, steps):
    """(training set, test set)"""
    if files := sorted(folder.glob("data_batch_*.bin")):
        return CifarBinary(files, steps), CifarBinary([folder / "test_batch.bin"], steps)
    return (torchvision.datasets.ImageFolder(str(folder / "train"), steps),
            torchvision.datasets.ImageFolder(str(folder / "test"), steps))


def resnet50():
    """For pictures of 32 x 32: without the strides at the beginning, which are made for 224 x 224."""
    model = torchvision.models.resnet50(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def main():
    options = training.parse_options(__doc__.splitlines()[0], training.default_data("cifar10-jpeg"), epochs=10)
    steps = transforms.Compose([transforms.ToTensor(),
                                transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))])
    data = training.open_or_exit(lambda folder: open_data(folder, steps), options.data)
    torch.manual_seed(options.seed)
    training.train(options, Augmented(resnet50()), *data)


if __name__ == "__main__":
    main()
