// SPDX-License-Identifier: Apache-2.0
// Rows that prove themselves: dtypes, shapes and bytes follow from the row id alone, so any reader can tell a wrong,
// torn or exchanged row. On libcache.h alone.
#pragma once

#include "capi/libcache.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace rows {

inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

// The bytes of column `column` of row `id`.
inline void fill(void *to, uint64_t bytes, int64_t id, uint32_t column) {
    uint64_t word = mix(uint64_t(id) * 0x9e3779b97f4a7c15ULL + column + 1);
    auto *at = static_cast<unsigned char *>(to);
    for (; bytes >= 8; bytes -= 8, at += 8, word += 0x9e3779b97f4a7c15ULL)
        memcpy(at, &word, 8);
    if (bytes != 0) memcpy(at, &word, bytes); // a column without bytes has no data
}

// The first wrong byte, or -1.
inline int64_t first_wrong(const void *from, uint64_t bytes, int64_t id, uint32_t column) {
    uint64_t word = mix(uint64_t(id) * 0x9e3779b97f4a7c15ULL + column + 1), done = 0;
    const auto *at = static_cast<const unsigned char *>(from);
    for (; done < bytes; done += 8, word += 0x9e3779b97f4a7c15ULL)
        if (memcmp(at + done, &word, bytes - done < 8 ? bytes - done : 8) != 0) return int64_t(done);
    return -1;
}

// What row `id` looks like. `largest` bounds the bytes of its big column.
class Row {
  public:
    explicit Row(int64_t id, uint64_t largest = 2000) : id_(id) {
        const uint64_t h = mix(uint64_t(id) + 77);
        add(CACHE_UINT8, {int64_t(h % 13), int64_t(h >> 8) % int64_t(largest / 13 + 1)}); // may hold a 0
        add(CACHE_INT64, {});                                                             // a scalar
        if (h >> 32 & 1) add(CACHE_FLOAT32, {2, 3, int64_t(h >> 40 & 15)});
        if (h >> 33 & 1) add(CACHE_STRING, {int64_t(h >> 48 & 63)});
        for (uint32_t i = 0; i < columns_.size(); i++) {
            bytes_[i].resize(columns_[i].bytes);
            fill(bytes_[i].data(), columns_[i].bytes, id, i);
            columns_[i].data = bytes_[i].data();
            columns_[i].shape = shapes_[i].data();
        }
    }
    Row(const Row &) = delete;
    Row &operator=(const Row &) = delete;

    int64_t id() const { return id_; }
    uint32_t n() const { return uint32_t(columns_.size()); }
    const cache_column *columns() const { return columns_.data(); }
    uint64_t bytes() const {
        uint64_t sum = 0;
        for (const cache_column &column : columns_)
            sum += column.bytes;
        return sum;
    }

    // "" if `view` shows this very row, else what is wrong.
    std::string difference(const cache_view &view) const {
        if (!view.cache || view.row_id != id_) return "the view shows row " + std::to_string(view.row_id);
        const int n_columns = cache_view_columns(&view);
        if (n_columns != int(n())) return say("has %d columns, not %u", n_columns, n());
        for (uint32_t i = 0; i < n(); i++) {
            cache_column got{};
            if (const int code = cache_view_column(&view, i, &got)) return say("column %u: code %d", i, code);
            const cache_column &want = columns_[i];
            if (got.dtype != want.dtype || got.ndim != want.ndim || got.bytes != want.bytes)
                return say("column %u: dtype %u, ndim %u, %llu bytes", i, got.dtype, got.ndim,
                           static_cast<unsigned long long>(got.bytes));
            for (uint32_t d = 0; d < want.ndim; d++)
                if (got.shape[d] != want.shape[d]) return say("column %u: extent %u is wrong", i, d);
            if (reinterpret_cast<uintptr_t>(got.data) % (got.bytes >= 256 ? 64 : 16) != 0 && got.bytes)
                return say("column %u is not aligned", i);
            if (const int64_t at = first_wrong(got.data, got.bytes, id_, i); at >= 0)
                return say("column %u: byte %lld of %llu is wrong", i, static_cast<long long>(at),
                           static_cast<unsigned long long>(got.bytes));
        }
        return "";
    }

  private:
    int64_t id_;
    std::vector<cache_column> columns_;
    std::vector<std::vector<int64_t>> shapes_;
    std::vector<std::vector<unsigned char>> bytes_ = std::vector<std::vector<unsigned char>>(4);

    void add(uint32_t dtype, std::vector<int64_t> shape) {
        cache_column column{};
        column.dtype = dtype;
        column.ndim = uint32_t(shape.size());
        column.bytes = cache_dtype_bytes(dtype);
        for (int64_t extent : shape)
            column.bytes *= uint64_t(extent);
        columns_.push_back(column);
        shapes_.push_back(std::move(shape));
    }
    template <typename... T> std::string say(const char *format, T... values) const {
        char text[200];
        snprintf(text, sizeof text, format, values...);
        return "row " + std::to_string(id_) + " " + text;
    }
};

// Puts row `id`. What cache_put returns.
inline int put(cache *handle, int64_t id, uint64_t largest = 2000) {
    const Row row(id, largest);
    return cache_put(handle, id, row.columns(), row.n());
}

// "" if row `id` is there and right.
inline std::string check(cache *handle, int64_t id, uint64_t largest = 2000) {
    cache_view view;
    if (const int code = cache_get(handle, id, &view))
        return "get of row " + std::to_string(id) + ": " + cache_strerror(code) + " (" + cache_last_error() + ")";
    std::string wrong = Row(id, largest).difference(view);
    cache_view_release(&view);
    return wrong;
}

} // namespace rows
