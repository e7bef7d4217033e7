# SPDX-License-Identifier: Apache-2.0
"""rows.py BUILD PORT SESSION CACHE ROWS ROW_BYTES LABEL [hold]: stores rows 0..ROWS-1 of ROW_BYTES bytes each through
libcache.h. With `hold` it then prints a line and keeps the cache open until its stdin ends. $ROWS_SPILL_LIMIT is the
limit in bytes of a cache that spills what is beyond."""
import ctypes
import os
import sys

UINT8 = 6  # CACHE_UINT8


class ClientOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("port", ctypes.c_uint32), ("hostname", ctypes.c_char_p),
                ("socket_path", ctypes.c_char_p), ("timeout_ms", ctypes.c_int64)]


class CacheOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("memory_limit_bytes", ctypes.c_uint64),
                ("expected_rows", ctypes.c_uint64), ("spill", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("tag", ctypes.c_char_p), ("label", ctypes.c_char_p)]


class Column(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("dtype", ctypes.c_uint32), ("ndim", ctypes.c_uint32), ("reserved", ctypes.c_uint64 * 4)]


def main(build, port, session, cache, rows, row_bytes, label, hold=""):
    library = ctypes.CDLL(f"{build}/lib/libcache.so")
    library.cache_last_error.restype = ctypes.c_char_p

    def check(result):
        if result < 0:
            sys.exit(library.cache_last_error().decode())

    client, handle = ctypes.c_void_p(), ctypes.c_void_p()
    options = ClientOptions(ctypes.sizeof(ClientOptions), int(port))
    check(library.cache_connect(ctypes.byref(options), ctypes.byref(client)))
    limit = int(os.environ.get("ROWS_SPILL_LIMIT", 0))
    cache_options = CacheOptions(ctypes.sizeof(CacheOptions), memory_limit_bytes=limit, spill=int(limit > 0),
                                 label=label.encode() or None)
    check(library.cache_open(client, ctypes.c_uint32(int(session)), ctypes.c_uint32(int(cache)),
                             ctypes.byref(cache_options), ctypes.byref(handle)))
    shape = (ctypes.c_int64 * 1)(int(row_bytes))
    data = ctypes.create_string_buffer(b"r" * int(row_bytes))
    column = Column(ctypes.addressof(data), int(row_bytes), shape, UINT8, 1)
    for row in range(int(rows)):
        check(library.cache_put(handle, ctypes.c_int64(row), ctypes.byref(column), ctypes.c_uint32(1)))
    if hold:
        print("holding", flush=True)
        sys.stdin.read()
    library.cache_close(handle)
    library.cache_disconnect(client)


if __name__ == "__main__":
    main(*sys.argv[1:])
