# SPDX-License-Identifier: Apache-2.0
"""tf.train.Example: the message in a TFRecord, for protobuf to parse. Its published description has three types:

    message Feature  { oneof kind { repeated bytes, float or int64 values in a list } }
    message Features { map<string, Feature> feature = 1; }
    message Example  { Features features = 1; }
"""
from __future__ import annotations

import functools
from typing import Any

_LISTS = (("bytes_list", "TYPE_BYTES"), ("float_list", "TYPE_FLOAT"), ("int64_list", "TYPE_INT64"))


@functools.lru_cache(maxsize=None)
def example_class() -> Any:
    """The class of the message. Made at run time, in a pool of its own, so that TensorFlow's may be loaded too."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError("TFRecordDataset needs protobuf: apt-get install python3-protobuf, or pip install "
                          "'libcache-shm[dataset]'") from error
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(descriptor_pb2))
    found = pool.FindMessageTypeByName("libcache.Example")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)  # before protobuf 4.22


def _file(pb: Any) -> Any:
    file = pb.FileDescriptorProto(name="libcache_example.proto", package="libcache", syntax="proto3")
    kinds = pb.FieldDescriptorProto
    feature = pb.DescriptorProto(name="Feature", oneof_decl=[pb.OneofDescriptorProto(name="kind")])
    for number, (name, kind) in enumerate(_LISTS, 1):
        file.message_type.add(name=name.title()).field.add(name="value", number=1, label=kinds.LABEL_REPEATED,
                                                           type=getattr(kinds, kind))
        feature.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_MESSAGE, oneof_index=0,
                          type_name=f".libcache.{name.title()}")
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options=pb.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=kinds.LABEL_OPTIONAL, type=kinds.TYPE_MESSAGE,
                    type_name=".libcache.Feature")
    features.field.add(name="feature", number=1, label=kinds.LABEL_REPEATED, type=kinds.TYPE_MESSAGE,
                       type_name=".libcache.Features.FeatureEntry")
    file.message_type.add(name="Example").field.add(name="features", number=1, label=kinds.LABEL_OPTIONAL,
                                                    type=kinds.TYPE_MESSAGE, type_name=".libcache.Features")
    return file
