# SPDX-License-Identifier: Apache-2.0
"""The sources of libcache.dataset: what they read, byte by byte, and what they say of damaged files."""
import gzip
import hashlib
import json
import shutil
import struct
import zlib

import numpy as np
import pytest

import libcache.dataset as ds
import libcache.dataset.vision as vision
from conftest import DATA
from dataset_files import COCO, FIXTURES, PK, TF, TF4, VOC, cifar10, cifar10_row, cifar100, count, example, \
    masked_crc, mnist, mnist_row, needs_fixtures, numbered_records, pictures, rows_of, write_records

Image = pytest.importorskip("PIL.Image", reason="no python3-pil: pictures are not decoded")
pytest.importorskip("google.protobuf", reason="no python3-protobuf: TFRecord files are not read")
pytest.importorskip("crc32c", reason="no python3-crc32c: TFRecord files are not read")


def md5(array):
    return hashlib.md5(array.tobytes()).hexdigest()


def failing_rows(make, total):
    """{row: what its error says} of a source with ids, each row asked for alone; the others are read."""
    errors = {}
    for row in range(total):
        try:
            assert count(make(sampler=[row])) == 1
        except RuntimeError as error:
            errors[row] = str(error)
    return errors


def assert_told(text, *parts):
    for part in parts:
        assert str(part) in text, text


# ---- MNIST and CIFAR ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason=f"no MNIST in {DATA}")
def test_mnist_itself():
    train = ds.MnistDataset(str(DATA / "mnist"), usage="train", shuffle=False)
    assert train.get_dataset_size() == 60_000 and train.output_shapes() == [[28, 28, 1], []]
    assert train.output_types() == [np.dtype(np.uint8), np.dtype(np.uint32)]
    images, labels = hashlib.md5(struct.pack(">4I", 2051, 60_000, 28, 28)), []
    for row in train.create_dict_iterator(num_epochs=1, output_numpy=True):
        images.update(row["image"].tobytes())
        labels.append(int(row["label"]))
    assert images.hexdigest() == "6bbc9ace898e44ae57da46a324031adb"
    whole = struct.pack(">2I", 2049, 60_000) + bytes(labels)
    assert hashlib.md5(whole).hexdigest() == "a25bea736e30d166cdddb491f175f624"
    assert np.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    both = ds.MnistDataset(str(DATA / "mnist"), shuffle=False, num_samples=3)
    assert [int(row["label"]) for row in rows_of(both)] == [7, 2, 1]  # the test rows come first
    assert ds.MnistDataset(str(DATA / "mnist")).get_dataset_size() == 70_000


def test_mnist_parts(tmp_path):
    mnist(tmp_path / "m", 5, "t10k")
    mnist(tmp_path / "m", 7)
    folder = str(tmp_path / "m")
    for usage, expected in (("train", list(range(7))), ("test", list(range(5))), (None, [*range(5), *range(7)])):
        rows = rows_of(ds.MnistDataset(folder, usage=usage, shuffle=False))
        assert [mnist_row(row["image"]) for row in rows] == expected
    sampler = ds.PKSampler(1)
    assert [int(row["label"]) for row in rows_of(ds.MnistDataset(folder, sampler=sampler))] == list(range(7))


def test_truncated_mnist(tmp_path):
    folder = mnist(tmp_path / "m", 10)
    path = tmp_path / "m" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:16 + 784 * 7 + 100])
    errors = failing_rows(lambda **options: ds.MnistDataset(folder, **options), 10)
    assert list(errors) == [7, 8, 9]
    assert_told(errors[7], path, "row 7", f"byte {16 + 784 * 7}", f"ends at byte {16 + 784 * 7 + 100}")


def test_mnist_with_a_wrong_header(tmp_path):
    folder = mnist(tmp_path / "m", 10)
    path = tmp_path / "m" / "train-labels-idx1-ubyte"
    whole = path.read_bytes()
    for data, parts in ((b"\0\0\x08\x03" + whole[4:], ("byte 0", "2051", "2049")), (whole[:5], ("byte 0", "5 bytes")),
                        (b"", ("byte 0", "0 bytes")), (whole[:7] + b"\x09" + whole[8:], ("byte 4", "9 labels"))):
        path.write_bytes(data)
        with pytest.raises(RuntimeError) as told:
            count(ds.MnistDataset(folder))
        assert_told(str(told.value), path, *parts)
    path.unlink()
    with pytest.raises(RuntimeError, match="no MNIST files"):
        count(ds.MnistDataset(folder))
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(whole)[:-9])
    with pytest.raises(RuntimeError, match="gzip stream"):
        count(ds.MnistDataset(folder))


def test_cifar(tmp_path):
    folder = cifar10(tmp_path / "c", 20)
    cifar10(tmp_path / "c", 10, "test_batch.bin")
    rows = rows_of(ds.Cifar10Dataset(folder, shuffle=False))
    assert [cifar10_row(row["image"]) for row in rows] == [*range(20), *range(10)]
    assert rows[3]["image"].shape == (32, 32, 3) and rows[3]["label"].dtype == np.uint32 and int(rows[13]["label"]) == 3
    raw = np.fromfile(tmp_path / "c" / "data_batch_1.bin", np.uint8)[3073 * 3 + 1:3073 * 4].reshape(3, 32, 32)
    assert np.array_equal(rows[3]["image"], raw.transpose(1, 2, 0))
    assert ds.Cifar10Dataset(folder, usage="test").get_dataset_size() == 10
    rows = rows_of(ds.Cifar100Dataset(cifar100(tmp_path / "h", 30), shuffle=False))
    assert list(rows[0]) == ["image", "coarse_label", "fine_label"]
    assert [int(row["coarse_label"]) for row in rows] == [i % 20 for i in range(30)]
    assert [int(row["fine_label"]) for row in rows] == list(range(30))


def test_truncated_cifar(tmp_path):
    folder = cifar10(tmp_path / "c", 5)
    path = tmp_path / "c" / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:3073 * 3 + 1000])
    assert ds.Cifar10Dataset(folder).get_dataset_size() == 4
    errors = failing_rows(lambda **options: ds.Cifar10Dataset(folder, **options), 4)
    assert list(errors) == [3]
    assert_told(errors[3], path, "row 3", f"byte {3073 * 3}", f"ends at byte {3073 * 3 + 1000}")
    path.write_bytes(b"")
    with pytest.raises(RuntimeError, match="the file is empty"):
        count(ds.Cifar10Dataset(folder))
    path.unlink()
    with pytest.raises(RuntimeError, match="has none of data_batch_1.bin"):
        count(ds.Cifar10Dataset(folder))


# ---- pictures -------------------------------------------------------------------------------------------------------


@needs_fixtures
def test_image_folder(tmp_path):
    data = ds.ImageFolderDataset(str(PK), shuffle=False)
    rows = rows_of(data)
    assert len(rows) == 44 and [int(row["label"]) for row in rows] == [0] * 11 + [1] * 11 + [2] * 11 + [3] * 11
    assert rows[0]["label"].dtype == np.int32 and data.num_classes() == 4
    assert data.get_class_indexing() == {"class1": 0, "class2": 1, "class3": 2, "class4": 3}
    files = [path for name in ("class1", "class2") for path in sorted((PK / name).iterdir())]
    assert [row["image"].tobytes() for row in rows[:22]] == [path.read_bytes() for path in files]


def test_image_folder_options(tmp_path):
    folder = pictures(tmp_path / "p", 3, 2)
    (tmp_path / "p" / "class0" / "notes.txt").write_text("no picture")
    Image.new("RGB", (4, 4)).save(tmp_path / "p" / "class2" / "x.bmp")
    data = ds.ImageFolderDataset(folder, shuffle=False, decode=True)
    assert [int(row["image"][0, 0, 0]) for row in rows_of(data)] == [0, 1, 2, 3, 4, 5, 0]
    assert ds.ImageFolderDataset(folder, extensions=[".bmp"]).get_dataset_size() == 1
    data = ds.ImageFolderDataset(folder, shuffle=False, class_indexing={"class2": 7, "class0": 5})
    assert [int(row["label"]) for row in rows_of(data)] == [5, 5, 7, 7, 7]
    with pytest.raises(RuntimeError, match="class9"):
        count(ds.ImageFolderDataset(folder, class_indexing={"class9": 0}))


@pytest.mark.parametrize("cached", [False, True])
def test_damaged_pictures(session, tmp_path, cached):
    folder = pictures(tmp_path / "p", 2, 3)
    jpeg = tmp_path / "p" / "class0" / "3.jpg"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(jpeg)
    jpeg.write_bytes(jpeg.read_bytes()[:900])  # cut in the middle
    (tmp_path / "p" / "class1" / "2.png").write_bytes(b"")
    cache = ds.DatasetCache(session_id=session.id) if cached else None
    errors = failing_rows(lambda **options: ds.ImageFolderDataset(folder, decode=True, cache=cache, **options), 7)
    assert list(errors) == [3, 6]
    assert_told(errors[3], jpeg, "row 3", "cannot be decoded")
    assert_told(errors[6], tmp_path / "p" / "class1" / "2.png", "row 6")
    if cached:
        assert cache.get_stat().num_mem_cached == 5
        cache = ds.DatasetCache(session_id=session.id)
    mapped = failing_rows(lambda **options: ds.ImageFolderDataset(folder, **options).map(vision.Decode(), "image",
                                                                                         cache=cache), 7)
    assert list(mapped) == [3, 6]
    assert_told(mapped[3], jpeg, "row 3", "Decode")
    if cached:
        assert cache.get_stat().num_mem_cached == 5


def test_a_picture_that_is_gone(tmp_path):
    folder = pictures(tmp_path / "p")
    data = ds.ImageFolderDataset(folder, shuffle=False)
    assert data.get_dataset_size() == 6
    (tmp_path / "p" / "class0" / "1.png").unlink()
    with pytest.raises(RuntimeError, match=r"1\.png, row 1: the file cannot be read: No such file"):
        count(data)


# ---- VOC and COCO: expected values are those that MindSpore 2.10 gives ----------------------------------------------


@needs_fixtures
def test_voc_detection():
    data = ds.VOCDataset(str(VOC), task="Detection", usage="train", shuffle=False, decode=True, extra_metadata=True)
    assert data.get_class_indexing() == {"car": 0, "cat": 1, "chair": 2, "dog": 3, "person": 4, "train": 5}
    rows = rows_of(data)
    assert [str(row["_meta-filename"]) for row in rows] == ["32", "33", "39", "42", "61", "63", "68", "121", "123"]
    assert md5(rows[0]["image"]) == "c9349798ceeeaa601783a413a836c43f" and rows[0]["image"].shape == (2268, 4032, 3)
    assert md5(rows[8]["image"]) == "5c5f475b434b6784a8aa43b94d98123f"
    row = rows[1]
    assert row["bbox"].tolist() == [[8, 121, 463, 121], [321, 121, 100, 100]] and row["bbox"].dtype == np.float32
    assert row["label"].tolist() == [[4], [4]] and row["truncate"].tolist() == [[0], [1]]
    assert row["difficult"].tolist() == [[0], [0]] and row["label"].dtype == np.uint32
    chosen = ds.VOCDataset(str(VOC), task="Detection", class_indexing={"person": 9}, sampler=[1, 4])
    assert [row["label"].tolist() for row in rows_of(chosen)] == [[[9], [9]], [[9]]]


@needs_fixtures
def test_voc_segmentation():
    rows = rows_of(ds.VOCDataset(str(VOC), task="Segmentation", usage="train", shuffle=False, decode=True))
    assert len(rows) == 10 and list(rows[0]) == ["image", "target"]
    assert md5(rows[0]["target"]) == "82a7c5ef1e1859e5b0f5fac77f149aa0"
    assert md5(rows[9]["image"]) != md5(rows[9]["target"])


@needs_fixtures
@pytest.mark.parametrize("usage, parts", [
    ("xmlnotexist", ("4176.xml", "row 0", "No such file")), ("invalidxml", ("invalidxml.xml", "row 0", "line 1")),
    ("xmlinvalidbbox", ("invalidbbox.xml", "row 0, object 1", "(321, 121) to (421, 120) is empty")),
    ("xmlnoobject", ("xmlnoobject.xml", "row 0", "no object"))])
def test_damaged_voc(session, usage, parts):
    cache = ds.DatasetCache(session_id=session.id)
    data = ds.VOCDataset(str(VOC), task="Detection", usage=usage, cache=cache)
    with pytest.raises(RuntimeError) as told:
        count(data)
    assert_told(str(told.value), *parts)
    assert cache.get_stat().num_mem_cached == 0


@needs_fixtures
def test_a_damaged_annotation_is_an_error_of_its_row(tmp_path):
    for name in ("ImageSets/Main", "Annotations", "JPEGImages"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("61", "63", "68"):
        shutil.copy(VOC / "Annotations" / f"{name}.xml", tmp_path / "Annotations")
        shutil.copy(VOC / "JPEGImages" / f"{name}.jpg", tmp_path / "JPEGImages")
    (tmp_path / "ImageSets/Main/train.txt").write_text("61\n63\n68\n")
    (tmp_path / "Annotations/63.xml").write_text("<annotation><object><name>dog</name></object></annotation>")
    errors = failing_rows(lambda **options: ds.VOCDataset(str(tmp_path), task="Detection", **options), 3)
    assert list(errors) == [1]
    assert_told(errors[1], "63.xml", "row 1, object 0", "missing")


def coco(name, **options):
    return ds.CocoDataset(str(COCO / "train"), str(COCO / "annotations" / name), shuffle=False, **options)


@needs_fixtures
def test_coco(session):
    data = coco("train.json", decode=True)
    rows = rows_of(data)
    assert [row["bbox"].tolist() for row in rows[:3]] == [[[10] * 4, [70] * 4], [[20] * 4, [80] * 4], [[30] * 4]]
    assert rows[1]["category_id"].tolist() == [[2], [8]] and rows[1]["iscrowd"].tolist() == [[0], [1]]
    assert md5(rows[2]["image"]) == "930794cacd2aa710de098e6a3b79f3d5"
    assert data.get_class_indexing()["orange"] == [8]
    rows = rows_of(coco("train.json", task="Stuff"))
    assert [md5(row["segmentation"]) for row in rows] == [
        "d2f3e983c315ea8cb34ec25686c1b2a3", "2e8d2242379971a4b9d3e120bcd89d5e", "f8df28e77c9a723658476f24cbf71b57",
        "e389762e54147899603602cda7214e0b", "b188a00f0273e8cda989978520d3dd29", "b188a00f0273e8cda989978520d3dd29"]
    assert rows[5]["segmentation"].shape == (2, 7)
    rows = rows_of(coco("key_point.json", task="Keypoint"))
    assert [md5(row["keypoints"]) for row in rows] == ["258c2aef041cc225565bf2c141a3080f",
                                                      "7ac91b9a4dcf68f3d88ade1796fbc3aa"]
    rows = rows_of(coco("panoptic.json", task="Panoptic"))
    assert [row["area"].tolist() for row in rows] == [[[705], [14062], [626]], [[43102], [6079]]]
    cache = ds.DatasetCache(session_id=session.id)
    for _ in range(2):
        rows = rows_of(coco("captions.json", task="Captioning", extra_metadata=True, cache=cache))
    assert cache.get_stat().hits == 2
    assert rows[0]["captions"][0, 0] == "This is a banana" and rows[0]["captions"].shape == (5, 1)
    assert str(rows[0]["_meta-filename"]) == "000000391895"


@needs_fixtures
def test_damaged_coco(session, tmp_path):
    for name, parts in (("invalid.json", ("invalid.json", "line 1 column 276")),
                        ("lack_of_images.json", ("lack_of_images.json", "'images'"))):
        with pytest.raises(RuntimeError) as told:
            count(coco(name))
        assert_told(str(told.value), *parts)
    cache = ds.DatasetCache(session_id=session.id)
    errors = failing_rows(lambda **options: ds.CocoDataset(
        str(COCO / "train"), str(COCO / "annotations" / "invalid_category_id.json"), cache=cache, **options), 6)
    assert list(errors) == [0, 1] and cache.get_stat().num_mem_cached == 4
    assert_told(errors[1], "invalid_category_id.json", "row 1", "000000318219.jpg", "annotation 10007", "category_id 8")
    content = json.loads((COCO / "annotations" / "train.json").read_text())
    content["annotations"][2]["bbox"] = [1, 2, 3]
    del content["annotations"][3]["iscrowd"]
    content["images"][4]["file_name"] = "nowhere.jpg"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(content))
    errors = failing_rows(lambda **options: ds.CocoDataset(str(COCO / "train"), str(path), **options), 6)
    assert list(errors) == [2, 3, 4]
    assert_told(errors[2], path, "row 2", "a bbox needs 4 numbers")
    assert_told(errors[3], path, "row 3", "'iscrowd' is missing")
    assert_told(errors[4], "nowhere.jpg", "row 4", "No such file")


# ---- TFRecord -------------------------------------------------------------------------------------------------------


@needs_fixtures
def test_tfrecord():
    rows = rows_of(ds.TFRecordDataset(str(TF / "train-0000-of-0001.data"), shuffle=False))
    assert [(row["image"].size, row["label"].tolist()) for row in rows] == [(159109, [1]), (192607, [2]), (179251, [3])]
    assert rows[0]["image"].dtype == np.uint8 and rows[0]["label"].dtype == np.int64
    assert md5(rows[0]["image"]) == "ce3042a9141c26f6dee225cdb42b57c2"
    schema = str(FIXTURES / "testPyfuncMap" / "schema.json")
    rows = rows_of(ds.TFRecordDataset(str(FIXTURES / "testPyfuncMap" / "data.data"), schema, shuffle=False))
    assert len(rows) == 12 and rows[2]["col1"].tolist() == [[8, 9], [10, 11]]
    text = str(FIXTURES / "testTextTFRecord" / "text.tfrecord")
    assert bytes(rows_of(ds.TFRecordDataset(text, shuffle=False))[0]["words"]) == b"Thistextfilea   "
    data = ds.TFRecordDataset(text, str(FIXTURES / "testTextTFRecord" / "datasetSchema.json"), ["words", "chinese"],
                              shuffle=False)
    assert data.get_col_names() == ["words", "chinese"] and data.output_shapes() == [[4], []]
    assert str(rows_of(data)[1]["chinese"]) == "男默女泪"


@needs_fixtures
@pytest.mark.parametrize("kind, ending", [("GZIP", "gz"), ("ZLIB", "zlib")])
def test_compressed_tfrecord(kind, ending):
    folder = FIXTURES / "tf_file_dataset"
    plain = [str(folder / f"test{number}.data") for number in range(1, 6)]
    packed = [f"{name}.{ending}" for name in plain]
    expected = [row["scalars"].tolist() for row in rows_of(ds.TFRecordDataset(plain, shuffle=False))]
    data = ds.TFRecordDataset(packed, shuffle=False, compression_type=kind)
    assert [row["scalars"].tolist() for row in rows_of(data)] == expected
    assert data.get_dataset_size() == len(expected) == 50


def test_tfrecord_files_and_shards(tmp_path):
    files = [numbered_records(tmp_path / f"{name}.data", 4, 4 * place) for place, name in enumerate("abc")]
    pattern = str(tmp_path / "*.data")

    def ids(**options):
        data = ds.TFRecordDataset(pattern, **options)
        found = [int(row["id"][0]) for row in rows_of(data)]
        assert data.get_dataset_size() == len(found)
        return found

    assert ids(shuffle=False) == list(range(12)) == ids(shuffle=False, num_parallel_workers=4)
    assert ids(shuffle=False, num_samples=5) == list(range(5))
    assert sorted(ids()) == list(range(12)) and {tuple(ids()) for _ in range(4)} != {tuple(range(12))}
    by_files = [ids(shuffle=ds.Shuffle.FILES) for _ in range(9)]
    assert all(sorted(found[::4]) == [0, 4, 8] and found[1] == found[0] + 1 for found in by_files)
    assert ids(shuffle=False, num_shards=2, shard_id=1) == [4, 5, 6, 7]
    assert ids(shuffle=False, num_shards=2, shard_id=0) == [0, 1, 2, 3, 8, 9, 10, 11]
    equal = [ids(shuffle=False, num_shards=5, shard_id=shard, shard_equal_rows=True) for shard in range(5)]
    assert equal[0] == [0, 5, 10] and equal[4] == [4, 9, 0] and {i for share in equal for i in share} == set(range(12))
    with pytest.raises(RuntimeError, match="numbers of tfrecord files 3 is less than num_shards 4"):
        ids(num_shards=4, shard_id=0)
    with pytest.raises(ValueError, match="did not match any files"):
        ds.TFRecordDataset([files[0], "/nowhere/*.data"])


def test_tfrecord_types(tmp_path):
    file = write_records(tmp_path / "t.data", [example(i=[1, -2], f=[0.5], b=[b"ab", b"c"], one=[7])])
    (row,) = rows_of(ds.TFRecordDataset(file))
    assert row["i"].tolist() == [1, -2] and row["f"].dtype == np.float32 and bytes(row["b"]) == b"abc "
    schema = ds.Schema()
    schema.add_column("i", "float64", [2, 1])
    schema.add_column("b", "string")
    schema.add_column("one", "int8", [])
    (row,) = rows_of(ds.TFRecordDataset(file, schema))
    assert row["i"].tolist() == [[1], [-2]] and row["b"].tolist() == ["ab", "c"] and row["one"].shape == ()
    assert row["one"].dtype == np.int8
    with pytest.raises(RuntimeError, match="columns_list do not exist"):
        count(ds.TFRecordDataset(file, columns_list=["nothing"]))
    schema.add_column("absent", "int8")
    with pytest.raises(RuntimeError, match="t.data, record 0, byte 0: there is no feature 'absent'"):
        count(ds.TFRecordDataset(file, schema))
    wrong = ds.Schema()
    wrong.add_column("i", "int64", [3])
    with pytest.raises(RuntimeError, match=r"'i' has 2 values, and the schema's shape is \[3\]"):
        count(ds.TFRecordDataset(file, wrong))


@pytest.mark.parametrize("at, flip, part", [
    (0, 1, "CRC-32C of the record's length"), (9, 1, "CRC-32C of the record's length"),
    (12, 1, "CRC-32C of the record's"), (-2, 1, "CRC-32C of the record's")])
def test_a_wrong_crc(session, tmp_path, at, flip, part):
    file = numbered_records(tmp_path / "n.data", 5)
    data = bytearray((tmp_path / "n.data").read_bytes())
    size = len(data) // 5
    place = 3 * size + at if at >= 0 else 4 * size + at
    data[place] ^= flip
    (tmp_path / "n.data").write_bytes(data)
    for cache in (None, ds.DatasetCache(session_id=session.id)):
        seen = []
        with pytest.raises(RuntimeError) as told:
            for row in ds.TFRecordDataset(file, shuffle=False, cache=cache).create_dict_iterator(num_epochs=1):
                seen.append(int(row["id"][0]))
        assert seen == [0, 1, 2]
        assert_told(str(told.value), file, "record 3", f"byte {3 * size}", part)
    assert cache.get_stat().num_mem_cached == 3
    assert len(rows_of(ds.TFRecordDataset(file, num_samples=3, shuffle=False, cache=cache))) == 3


def test_a_cut_and_a_senseless_tfrecord(tmp_path):
    file = numbered_records(tmp_path / "n.data", 3)
    data = (tmp_path / "n.data").read_bytes()
    size = len(data) // 3
    for cut, part in ((2 * size + 5, "within the record's header"), (2 * size + 20, "ends within the record: 8 of")):
        (tmp_path / "n.data").write_bytes(data[:cut])
        with pytest.raises(RuntimeError) as told:
            count(ds.TFRecordDataset(file, shuffle=False))
        assert_told(str(told.value), file, "record 2", f"byte {2 * size}", part)
    write_records(tmp_path / "n.data", [b"\xff\xff\xff"])
    with pytest.raises(RuntimeError, match="n.data, record 0, byte 0: the record is no tf.train.Example"):
        count(ds.TFRecordDataset(file))
    (tmp_path / "n.data").write_bytes(b"")
    with pytest.raises(RuntimeError, match="there is no record"):
        count(ds.TFRecordDataset(file))
    (tmp_path / "n.data").write_bytes(zlib.compress(data)[:-20])
    with pytest.raises(RuntimeError, match="n.data, record"):
        count(ds.TFRecordDataset(file, shuffle=False, compression_type="ZLIB"))
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF


@needs_fixtures
def test_schema_files(tmp_path):
    schema = ds.Schema(str(FIXTURES / "testRandomData" / "datasetSchema.json"))
    assert [column.name for column in schema.columns] == ["image", "label"]
    assert schema.columns[0].shape == (1920, 1080, 3)
    assert ds.Schema(str(FIXTURES / "tf_file_dataset" / "datasetSchema.json")).num_rows == 50
    path = tmp_path / "list.json"
    path.write_text('{"columns": [{"name": "a", "type": "int8", "rank": 1, "shape": [2]}]}')
    assert rows_of(ds.RandomDataset(3, str(path)))[2]["a"].shape == (2,)
    for text in ("{", '{"columns": {"a": {}}}', "[]", '{"columns": {"a": {"type": "what"}}}'):
        path.write_text(text)
        with pytest.raises(RuntimeError, match="list.json: not a schema"):
            ds.Schema(str(path))


# ---- made up, and from Python ---------------------------------------------------------------------------------------


def test_random_rows():
    data = ds.RandomDataset(total_rows=7, columns_list=None)
    assert count(data) == 7 == data.get_dataset_size()
    assert 1 <= ds.RandomDataset().get_dataset_size() <= 1000
    schema = ds.Schema()
    for name in ("bool", "int8", "uint64", "float16", "float64", "string"):
        schema.add_column(name, name, [2, 2])
    row = rows_of(ds.RandomDataset(1, schema))[0]
    assert [row[name].shape for name in row] == [(2, 2)] * 6 and row["string"].dtype.kind == "U"
    assert not np.array_equal(*(r["uint64"] for r in rows_of(ds.RandomDataset(2, schema))))


def test_generators():
    pairs = [(np.array([i]), i * 0.5) for i in range(10)]
    data = ds.GeneratorDataset(pairs, ["a", "b"], [ds.dtype.int32, ds.dtype.float32], shuffle=False)
    rows = rows_of(data)
    assert [int(row["a"][0]) for row in rows] == list(range(10)) and rows[1]["b"].dtype == np.float32
    assert sorted(int(row["a"][0]) for row in rows_of(ds.GeneratorDataset(pairs, ["a", "b"]))) == list(range(10))
    assert len(rows_of(ds.GeneratorDataset(pairs, ["a", "b"], num_shards=3, shard_id=0))) == 4

    def stream():
        yield from ((i,) for i in range(6))

    data = ds.GeneratorDataset(stream, "a", num_samples=4)
    assert [int(row["a"]) for row in rows_of(data)] == [0, 1, 2, 3] and data.get_dataset_size() == 4
    assert [int(row["a"]) for row in rows_of(data.repeat(2))] == [0, 1, 2, 3] * 2
    with pytest.raises(ValueError, match="need a source with __getitem__"):
        ds.GeneratorDataset(stream, "a", shuffle=True)
    with pytest.raises(RuntimeError, match="row 0 of the generator has 1 and column_names 2"):
        count(ds.GeneratorDataset(stream, ["a", "b"]))
    with pytest.raises(RuntimeError, match="row 1 of Failing: KeyError"):
        count(ds.GeneratorDataset(Failing(), ["a"], shuffle=False))
    with pytest.raises(TypeError, match="column a gave a value of type object"):
        count(ds.GeneratorDataset([(object(),)], ["a"]))


class Failing:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise KeyError("no such thing")
        return (np.array(index),)


@needs_fixtures
@pytest.mark.parametrize("error, make", [
    (ValueError, lambda: ds.MnistDataset("/nowhere")),
    (ValueError, lambda: ds.MnistDataset("/tmp", usage="x")),
    (ValueError, lambda: ds.MnistDataset("/tmp", num_samples=-1)),
    (RuntimeError, lambda: ds.MnistDataset("/tmp", num_shards=2)),
    (RuntimeError, lambda: ds.MnistDataset("/tmp", shard_id=0)),
    (ValueError, lambda: ds.MnistDataset("/tmp", num_shards=2, shard_id=2)),
    (RuntimeError, lambda: ds.MnistDataset("/tmp", shuffle=True, sampler=ds.SequentialSampler())),
    (RuntimeError, lambda: ds.MnistDataset("/tmp", num_shards=2, shard_id=0, sampler=ds.SequentialSampler())),
    (TypeError, lambda: ds.MnistDataset("/tmp", sampler=5)),
    (TypeError, lambda: ds.MnistDataset("/tmp", shuffle=1)),
    (ValueError, lambda: ds.MnistDataset("/tmp", num_parallel_workers=0)),
    (ValueError, lambda: ds.VOCDataset(str(VOC), task="What")),
    (ValueError, lambda: ds.VOCDataset(str(VOC), usage="nothing")),
    (ValueError, lambda: ds.VOCDataset(str(VOC), class_indexing={"a": 1})),
    (ValueError, lambda: ds.CocoDataset(str(COCO / "train"), "/nowhere.json")),
    (TypeError, lambda: ds.TFRecordDataset(str(TF4 / "train-0000-of-0001.data"), shuffle=5)),
    (ValueError, lambda: ds.TFRecordDataset([])),
])
def test_wrong_arguments(error, make):
    with pytest.raises(error):
        make()
