# SPDX-License-Identifier: Apache-2.0
"""The pipelines of MindSpore's model zoo for LeNet, ResNet and MobileNetV2 restated: scripts of both generations run
with only their imports changed, with a cache and without."""
import numpy as np
import pytest

import libcache.dataset as ds
import libcache.dataset.transforms.c_transforms as C2
import libcache.dataset.vision.c_transforms as C
from dataset_files import cifar10, mnist, pictures
from libcache.dataset import dtype as mstype
from libcache.dataset.vision import Inter

pytest.importorskip("PIL", reason="no python3-pil: pictures are not resized")


def lenet(data_path, batch_size=32, repeat_size=1, num_parallel_workers=1, cache=None):
    mnist_ds = ds.MnistDataset(data_path, cache=cache)
    resize_op = C.Resize((32, 32), interpolation=Inter.LINEAR)
    rescale_nml_op = C.Rescale(1 / 0.3081, -1 * 0.1307 / 0.3081)
    rescale_op = C.Rescale(1.0 / 255.0, 0.0)
    hwc2chw_op = C.HWC2CHW()
    type_cast_op = C2.TypeCast(mstype.int32)
    mnist_ds = mnist_ds.map(operations=type_cast_op, input_columns="label", num_parallel_workers=num_parallel_workers)
    for operation in (resize_op, rescale_op, rescale_nml_op, hwc2chw_op):
        mnist_ds = mnist_ds.map(operations=operation, input_columns="image", num_parallel_workers=num_parallel_workers)
    mnist_ds = mnist_ds.shuffle(buffer_size=10000)
    mnist_ds = mnist_ds.batch(batch_size, drop_remainder=True)
    return mnist_ds.repeat(repeat_size)


def resnet_cifar10(dataset_path, do_train, repeat_num=1, batch_size=32, device_num=1, rank_id=0, cache=None):
    if device_num == 1:
        data_set = ds.Cifar10Dataset(dataset_path, num_parallel_workers=8, shuffle=True, cache=cache)
    else:
        data_set = ds.Cifar10Dataset(dataset_path, num_parallel_workers=8, shuffle=True, num_shards=device_num,
                                     shard_id=rank_id, cache=cache)
    trans = []
    if do_train:
        trans += [C.RandomCrop((32, 32), (4, 4, 4, 4)), C.RandomHorizontalFlip(prob=0.5)]
    trans += [C.Resize((224, 224)), C.Rescale(1.0 / 255.0, 0.0),
              C.Normalize([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]), C.HWC2CHW()]
    type_cast_op = C2.TypeCast(mstype.int32)
    data_set = data_set.map(operations=type_cast_op, input_columns="label", num_parallel_workers=8)
    data_set = data_set.map(operations=trans, input_columns="image", num_parallel_workers=8)
    data_set = data_set.batch(batch_size, drop_remainder=True)
    return data_set.repeat(repeat_num)


def resnet_imagenet(dataset_path, do_train, batch_size=4, cache=None):
    data_set = ds.ImageFolderDataset(dataset_path, num_parallel_workers=4, shuffle=True, cache=cache)
    mean, std = [0.485 * 255, 0.456 * 255, 0.406 * 255], [0.229 * 255, 0.224 * 255, 0.225 * 255]
    if do_train:
        trans = [C.RandomCropDecodeResize(224, scale=(0.08, 1.0), ratio=(0.75, 1.333)),
                 C.RandomHorizontalFlip(prob=0.5), C.Normalize(mean=mean, std=std), C.HWC2CHW()]
    else:
        trans = [C.Decode(), C.Resize(256), C.CenterCrop(224), C.Normalize(mean=mean, std=std), C.HWC2CHW()]
    data_set = data_set.map(operations=trans, input_columns="image", num_parallel_workers=4)
    data_set = data_set.map(operations=C2.TypeCast(mstype.int32), input_columns="label", num_parallel_workers=4)
    return data_set.batch(batch_size, drop_remainder=True)


def mobilenetv2(dataset_path, do_train, batch_size=4, cache=None):
    data = ds.ImageFolderDataset(dataset_path, num_parallel_workers=4, shuffle=True, num_shards=1, shard_id=0,
                                 cache=cache)
    decode_op = C.Decode()
    resize_crop_decode_op = C.RandomCropDecodeResize(224, scale=(0.08, 1.0), ratio=(0.75, 1.333))
    horizontal_flip_op = C.RandomHorizontalFlip(prob=0.5)
    random_color_op = C.RandomColorAdjust(brightness=0.4, contrast=0.4, saturation=0.4)
    rescale_op = C.Rescale(1.0 / 255.0, 0.0)
    normalize_op = C.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    if do_train:
        trans = [resize_crop_decode_op, horizontal_flip_op, random_color_op]
    else:
        trans = [decode_op, C.Resize(256), C.CenterCrop(224)]
    trans += [rescale_op, normalize_op, C.HWC2CHW()]
    data = data.map(operations=trans, input_columns="image", num_parallel_workers=4)
    data = data.map(operations=C2.TypeCast(mstype.int32), input_columns="label", num_parallel_workers=4)
    data = data.shuffle(buffer_size=8)
    return data.batch(batch_size, drop_remainder=True).repeat(1)


@pytest.fixture
def caches(session):
    """None, a new cache, and one that finds it full."""
    return None, ds.DatasetCache(session_id=session.id), ds.DatasetCache(session_id=session.id)


def run(dataset, batches, shape, rows):
    """The epoch's batches; labels must come in pairs with pictures that tell them, whatever was done to those."""
    found = list(dataset.create_dict_iterator(num_epochs=1))
    assert len(found) == batches == dataset.get_dataset_size()
    for batch in found:
        image, label = batch["image"].asnumpy(), batch["label"].asnumpy()
        assert image.shape == shape and image.dtype == np.float32 and np.isfinite(image).all()
        assert label.shape == shape[:1] and label.dtype == np.int32
    assert len({label for batch in found for label in batch["label"].tolist()}) == rows
    return found


@pytest.mark.parametrize("workers", [1, 3])
def test_lenet(caches, tmp_path, workers):
    folder = mnist(tmp_path / "mnist", 100)
    for cache in caches:
        data = lenet(folder, num_parallel_workers=workers, repeat_size=2, cache=cache)
        for batch in run(data, 6, (32, 1, 32, 32), 10):
            rows = np.rint((batch["image"].asnumpy()[:, 0, 31, 31] * 0.3081 + 0.1307) * 255).astype(int)
            assert (rows % 10 == batch["label"].asnumpy()).all()
    assert caches[2].get_stat().misses == 0


@pytest.mark.parametrize("do_train", [False, True])
def test_resnet(caches, tmp_path, do_train):
    folder = cifar10(tmp_path / "cifar", 48)
    for cache in caches:
        run(resnet_cifar10(folder, do_train, batch_size=16, cache=cache), 3, (16, 3, 224, 224), 10)
    share = resnet_cifar10(folder, do_train, batch_size=8, device_num=4, rank_id=1, cache=caches[2])
    assert sum(1 for _ in share.create_dict_iterator(num_epochs=1)) == 1
    assert caches[2].get_stat().misses == 0
    folder = pictures(tmp_path / "pictures", 3, 4, (300, 280))
    found = [run(resnet_imagenet(folder, do_train, cache=cache), 3, (4, 3, 224, 224), 3)
             for cache in (None, ds.DatasetCache(session_id=caches[1].session_id))]
    if not do_train:  # the same pictures in any order
        left, right = (sorted(image.tobytes() for batch in each for image in batch["image"].asnumpy())
                       for each in found)
        assert left == right


@pytest.mark.parametrize("do_train", [False, True])
def test_mobilenetv2(caches, tmp_path, do_train):
    folder = pictures(tmp_path / "pictures", 3, 4, (300, 280))
    for cache in caches:
        run(mobilenetv2(folder, do_train, cache=cache), 3, (4, 3, 224, 224), 3)
    assert caches[2].get_stat().misses == 0
