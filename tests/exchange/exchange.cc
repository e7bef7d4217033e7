// SPDX-License-Identifier: Apache-2.0
// exchange_cpp write|read SESSION CACHE IMAGES LABELS: the C++ side of test_exchange.py; see exchange.c.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <libcache.hpp>
#include <numeric>

namespace {

constexpr size_t kPixels = 28 * 28, kImagesHeader = 16, kLabelsHeader = 8;
const std::vector<std::string> kNames = {"image", "label", "mean", "word"};
constexpr std::string_view kWords[] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};

struct Row {
    std::span<const uint8_t> image;
    int64_t label;
    float mean;
    std::string_view word;
};

std::vector<uint8_t> read_whole(const char *path, size_t header) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    return {bytes.begin() + static_cast<ptrdiff_t>(std::min(header, bytes.size())), bytes.end()};
}

Row make_row(std::span<const uint8_t> images, uint8_t label, size_t i) {
    const auto image = images.subspan(i * kPixels, kPixels);
    const unsigned sum = std::accumulate(image.begin(), image.end(), 0U);
    return {image, label, static_cast<float>(sum) / static_cast<float>(kPixels), kWords[label]};
}

[[noreturn]] void die(const char *what, size_t i) {
    fprintf(stderr, "exchange_cpp: row %zu: %s\n", i, what);
    exit(1);
}

void compare(const libcache::Cache &rows, size_t i, const Row &row) {
    const libcache::View view = rows.get(static_cast<int64_t>(i)).value();
    const auto column = [&](uint32_t number) { return view.column(number).value(); };
    if (view.columns() != kNames.size()) die("another number of columns", i);
    if (!std::ranges::equal(column(0).shape(), std::array<int64_t, 2>{28, 28})) die("another shape", i);
    if (!std::ranges::equal(column(0).as<uint8_t>().value(), row.image)) die("another image", i);
    if (!column(1).shape().empty() || column(1).scalar<int64_t>().value() != row.label) die("another label", i);
    if (!column(2).shape().empty() || column(2).scalar<float>().value() != row.mean) die("another mean", i);
    if (column(3).dtype() != CACHE_STRING || column(3).text() != row.word) die("another word", i);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    const bool write = strcmp(argv[1], "write") == 0;
    const std::vector<uint8_t> images = read_whole(argv[4], kImagesHeader), labels = read_whole(argv[5], kLabelsHeader);
    const libcache::Client client = libcache::Client::connect().value();
    const auto session = client.session(static_cast<uint32_t>(std::stoul(argv[2])));
    libcache::Cache rows = session.open(static_cast<uint32_t>(std::stoul(argv[3]))).value();
    if (write) rows.set_names(kNames).value();
    if (rows.names().value() != kNames) die("other names", 0);
    for (size_t i = 0; i < labels.size(); ++i) {
        const Row row = make_row(images, labels[i], i);
        if (!write)
            compare(rows, i, row);
        else if (rows.put(static_cast<int64_t>(i), {libcache::array(row.image, {28, 28}), libcache::scalar(row.label),
                                                    libcache::scalar(row.mean), libcache::text(row.word)})
                     .value() != libcache::Put::stored)
            die("was there", i);
    }
    printf("%zu rows\n", labels.size());
    return 0;
}
