# SPDX-License-Identifier: Apache-2.0
"""Operations of vision and transforms, by hand-made expectations."""
import io
import pickle

import numpy as np
import pytest

import libcache.dataset.dtype as mstype
import libcache.dataset.transforms as transforms
import libcache.dataset.transforms.c_transforms as c_transforms
import libcache.dataset.transforms.py_transforms as py_transforms
import libcache.dataset.vision as vision
import libcache.dataset.vision.c_transforms as c_vision
import libcache.dataset.vision.py_transforms as py_vision
from libcache.dataset.vision import Border, Inter

Image = pytest.importorskip("PIL.Image", reason="no python3-pil: pictures are not decoded")
PICTURE = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


def encoded(array, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return np.frombuffer(file.getvalue(), np.uint8)


def results(operation, image=PICTURE, times=40):
    return {operation(image).tobytes() for _ in range(times)}


def test_both_generations_have_the_names():
    for name in ("Decode", "Resize", "Rescale", "Normalize", "HWC2CHW", "CenterCrop", "RandomCrop",
                 "RandomHorizontalFlip", "RandomCropDecodeResize", "ToTensor", "RandomColorAdjust"):
        assert getattr(c_vision, name) is getattr(vision, name)
    assert c_transforms.TypeCast is transforms.TypeCast and py_transforms.OneHot is transforms.OneHot
    assert c_vision.Inter is Inter and Inter.BILINEAR is Inter.LINEAR
    assert py_vision.RandomCrop is vision.RandomCrop and py_transforms.Compose is transforms.Compose


def test_decode():
    assert np.array_equal(vision.Decode()(encoded(PICTURE)), PICTURE)
    grey = vision.Decode()(encoded(PICTURE[..., 0]))
    assert grey.shape == (5, 7, 3) and np.array_equal(grey[..., 2], PICTURE[..., 0])
    assert isinstance(py_vision.Decode()(encoded(PICTURE)), Image.Image)
    for wrong in (PICTURE, encoded(PICTURE).astype(np.int32)):
        with pytest.raises(ValueError, match="Decode takes the bytes of a file"):
            vision.Decode()(wrong)
    with pytest.raises(OSError):
        vision.Decode()(encoded(PICTURE, "JPEG")[:-20])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int32])
@pytest.mark.parametrize("channels", [None, 1, 3, 4, 2])
def test_resize(dtype, channels):
    shape = (4, 6) if channels is None else (4, 6, channels)
    image = np.full(shape, 9, dtype)
    for size, expected in (((8, 3), (8, 3)), (2, (2, 3)), (8, (8, 12))):
        made = vision.Resize(size)(image)
        assert made.shape == (*expected, *shape[2:]) and made.dtype == dtype and (made == 9).all()
    assert vision.Resize((2, 1))(image).shape[:2] == (2, 1)
    assert vision.Resize(3)(image.swapaxes(0, 1)).shape[:2] == (4, 3)


def test_resize_interpolates():
    ramp = np.array([[0, 100]], np.uint8)
    nearest = vision.Resize((1, 4), Inter.NEAREST)(ramp).tolist()
    linear = vision.Resize((1, 4))(ramp).tolist()
    assert nearest == [[0, 0, 100, 100]] and linear == [[0, 25, 75, 100]]
    expected = np.asarray(Image.fromarray(PICTURE).resize((3, 2), Image.BICUBIC))
    assert np.array_equal(vision.Resize((2, 3), Inter.BICUBIC)(PICTURE), expected)


def test_values():
    made = vision.Rescale(0.5, 1)(PICTURE)
    assert made.dtype == np.float32 and np.array_equal(made, PICTURE.astype(np.float32) / 2 + 1)
    made = vision.Normalize([1, 2, 3], [2, 4, 8])(PICTURE)
    assert made.dtype == np.float32 and np.allclose(made[1, 2], (PICTURE[1, 2] - np.array([1, 2, 3.])) / [2, 4, 8])
    chw = vision.Normalize([1, 2, 3], [2, 4, 8], is_hwc=False)(PICTURE.transpose(2, 0, 1))
    assert np.array_equal(chw, made.transpose(2, 0, 1))
    assert np.array_equal(py_vision.Normalize([1, 2, 3], [2, 4, 8])(PICTURE.transpose(2, 0, 1)), chw)
    assert np.array_equal(vision.HWC2CHW()(PICTURE), PICTURE.transpose(2, 0, 1))
    made = vision.ToTensor()(Image.fromarray(PICTURE))
    assert made.shape == (3, 5, 7) and made.dtype == np.float32
    assert made[2, 1, 0] == np.float32(PICTURE[1, 0, 2]) / np.float32(255)
    assert vision.ToTensor(np.float16)(PICTURE[..., 0]).shape == (1, 5, 7)
    assert np.array_equal(np.asarray(vision.ToPIL()(PICTURE)), PICTURE)


def test_center_crop():
    assert np.array_equal(vision.CenterCrop((3, 3))(PICTURE), PICTURE[1:4, 2:5])
    made = vision.CenterCrop(7)(PICTURE)
    assert made.shape == (7, 7, 3) and np.array_equal(made[1:6], PICTURE) and not made[0].any() and not made[6].any()


def test_random_crop():
    found = results(vision.RandomCrop((3, 5)), times=200)
    windows = {np.ascontiguousarray(PICTURE[y:y + 3, x:x + 5]).tobytes() for y in range(3) for x in range(3)}
    assert found == windows
    made = vision.RandomCrop((9, 13), padding=(3, 2), fill_value=(1, 2, 3))(PICTURE)
    assert made.shape == (9, 13, 3) and made[0, 0].tolist() == [1, 2, 3] and np.array_equal(made[2:7, 3:10], PICTURE)
    made = vision.RandomCrop((8, 11), padding=(1, 2, 3, 1), padding_mode=Border.EDGE)(PICTURE)
    assert np.array_equal(made[2:7, 1:8], PICTURE) and np.array_equal(made[0, 1:8], PICTURE[0])
    assert vision.RandomCrop(12, pad_if_needed=True)(PICTURE).shape == (12, 12, 3)
    with pytest.raises(ValueError, match="larger than the picture"):
        vision.RandomCrop(12)(PICTURE)


def test_random_flips():
    assert results(vision.RandomHorizontalFlip()) == {PICTURE.tobytes(), PICTURE[:, ::-1].tobytes()}
    assert results(vision.RandomVerticalFlip()) == {PICTURE.tobytes(), PICTURE[::-1].tobytes()}
    assert results(vision.RandomHorizontalFlip(0)) == {PICTURE.tobytes()}
    assert results(vision.RandomHorizontalFlip(1)) == {PICTURE[:, ::-1].tobytes()}


def test_random_resized_crop():
    data = encoded(PICTURE)
    operation = vision.RandomCropDecodeResize((4, 6))
    assert {operation(data).shape for _ in range(20)} == {(4, 6, 3)} and len(results(operation, data)) > 5
    whole = vision.RandomResizedCrop((5, 7), scale=(1, 1), ratio=(7 / 5, 7 / 5))(PICTURE)
    assert np.array_equal(whole, PICTURE)
    assert vision.RandomResizedCrop(3, scale=(30, 40), max_attempts=1)(PICTURE).shape == (3, 3, 3)  # the middle


def test_random_color_adjust():
    assert np.array_equal(vision.RandomColorAdjust()(PICTURE), PICTURE)
    assert np.array_equal(vision.RandomColorAdjust(brightness=(0.5, 0.5))(PICTURE)[0, 6], PICTURE[0, 6] // 2)
    for options in ({"brightness": 0.4}, {"contrast": 0.4}, {"saturation": (0.1, 2)}, {"hue": 0.3}):
        operation = vision.RandomColorAdjust(**options)
        assert len(results(operation)) > 1 and operation(PICTURE).shape == PICTURE.shape


def test_type_cast_and_one_hot():
    for dtype in (np.int32, "int32", mstype.int32, type("Int32", (), {"__str__": lambda self: "Int32"})()):
        assert transforms.TypeCast(dtype)(np.array(3.7)).dtype == np.int32
    assert transforms.OneHot(4)(np.array(2, np.uint8)).tolist() == [0, 0, 1, 0]
    assert transforms.OneHot(3)(np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert np.allclose(transforms.OneHot(4, 0.2)(np.array(1)), [0.05, 0.85, 0.05, 0.05])
    for wrong in (np.array(4), np.array(-1), np.array(0.5)):
        with pytest.raises(ValueError):
            transforms.OneHot(4)(wrong)


def test_compose_and_not_random():
    made = transforms.Compose([vision.ToTensor(), vision.Normalize([0] * 3, [2] * 3, is_hwc=False)])
    assert made(PICTURE).max() == np.float32(PICTURE.max()) / np.float32(255) / 2 and not made.random
    assert transforms.Compose([vision.ToTensor(), lambda x: x]).random
    assert transforms.Compose([vision.RandomCrop(2)]).random
    assert c_vision.not_random(lambda x: x).random is False
    assert vision.RandomCrop(1).random and vision.RandomHorizontalFlip().random and not vision.Resize(1).random
    assert np.array_equal(pickle.loads(pickle.dumps(vision.Resize((2, 3))))(PICTURE), vision.Resize((2, 3))(PICTURE))


@pytest.mark.parametrize("make", [
    lambda: vision.Resize(0), lambda: vision.Resize((1, 2, 3)), lambda: vision.CenterCrop(-1),
    lambda: vision.RandomCrop((2, 2), -1), lambda: vision.RandomCrop(2, (1, 2, 3)),
    lambda: vision.RandomHorizontalFlip(2), lambda: vision.Normalize([1], [1, 2]), lambda: vision.Normalize([1], [0]),
    lambda: vision.RandomResizedCrop(2, scale=(2, 1)), lambda: vision.Decode(rgb=False),
    lambda: vision.RandomColorAdjust(hue=0.7), lambda: vision.RandomColorAdjust(brightness=(2, 1)),
    lambda: transforms.OneHot(0), lambda: transforms.OneHot(3, 2.0), lambda: transforms.Compose([])])
def test_wrong_arguments(make):
    with pytest.raises(ValueError):
        make()


def test_what_is_no_picture():
    for operation in (vision.Resize(2), vision.CenterCrop(2), vision.RandomCrop(2), vision.Normalize([0], [1])):
        with pytest.raises(ValueError, match="has it been decoded"):
            operation(np.zeros(5, np.uint8))
