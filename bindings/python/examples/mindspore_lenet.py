#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST with MindSpore itself, as in the article that libcache starts from, its rows from libcache:

    mindspore_lenet.py mnist --session $(cache_admin -g | awk 'END {print $NF}')

The one line more than without a cache is marked.
"""
import argparse
import os
import sys

try:
    import mindspore.dataset as ds
    import mindspore.dataset.transforms as transforms
    import mindspore.dataset.vision as vision
    from mindspore import Model, dtype, nn, set_seed
except ModuleNotFoundError as missing:
    sys.exit(f"mindspore_lenet.py needs MindSpore ({missing}); tests/requirements-mindspore.txt tells which")

import libcache.mindspore
from libcache.dataset import DatasetCache


def digits(folder, cache, batch_size):
    data = ds.MnistDataset(folder, usage="train")
    data = libcache.mindspore.cached(data, cache)  # this one
    scale = vision.Rescale(1 / 255 / 0.3081, -0.1307 / 0.3081)
    data = data.map([vision.Resize((32, 32)), scale, vision.HWC2CHW()], "image")
    data = data.map(transforms.TypeCast(dtype.int32), "label")
    return data.batch(batch_size, drop_remainder=True)


class LeNet5(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(
            nn.Conv2d(1, 6, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2),
            nn.Conv2d(6, 16, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
            nn.Dense(400, 120), nn.ReLU(), nn.Dense(120, 84), nn.ReLU(), nn.Dense(84, 10))

    def construct(self, image):
        return self.layers(image)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="with the files of MNIST")
    parser.add_argument("--session", type=int, required=True, help="from cache_admin -g")
    parser.add_argument("--epochs", type=int, default=1, help="times that each row is seen; 1, unless given")
    options = parser.parse_args()
    if not os.path.isdir(options.folder):
        parser.error(f"there is no folder {options.folder} with the files of MNIST")
    set_seed(1)
    cache = DatasetCache(session_id=options.session)
    network = LeNet5()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(network, loss, nn.Momentum(network.trainable_params(), 0.01, 0.9), metrics={"accuracy"})
    model.train(options.epochs, digits(options.folder, cache, 32), dataset_sink_mode=False)
    stat = cache.get_stat()
    print(f"trained; {stat.misses} rows from the source, {stat.hits} from the cache, {stat.num_mem_cached} in memory")


if __name__ == "__main__":
    main()
