// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_idx.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <stdexcept>
#include <unistd.h>
#include <zlib.h>

namespace demo {
namespace {

constexpr unsigned kUnsignedByte = 0x08; // the type of element
constexpr uint64_t kChunk = 4u << 20;    // read at once, so that a header that lies costs no more memory than this
constexpr uint64_t kMaxItem = 64u << 20;

// An open file that knows its name and position, so that each error can tell them.
class Input {
  public:
    Input(int fd, const std::string &name) : name_(name), file_(gzdopen(fd, "rb"), gzclose) {
        if (!file_) {
            close(fd);
            throw std::runtime_error(name + ": no memory to read it");
        }
        gzbuffer(file_.get(), 256 << 10);
    }

    bool gzip() const { return gzdirect(file_.get()) == 0; }

    [[noreturn]] void fail(uint64_t position, const std::string &what) const {
        throw std::runtime_error(name_ + ": byte " + std::to_string(position) + ": " + what);
    }

    // Reads exactly `bytes`; `expected` is the length of the file as far as it is known.
    void read(void *to, uint64_t bytes, uint64_t expected) {
        if (uint64_t got = read_some(to, bytes); got != bytes)
            fail(position_, "the file ends here, but must have " + std::to_string(expected) +
                                " bytes: it is truncated, get it again");
    }

    bool at_end() {
        char byte;
        return read_some(&byte, 1) == 0;
    }

    uint64_t position() const { return position_; }

  private:
    uint64_t read_some(void *to, uint64_t bytes) {
        const int got = gzread(file_.get(), to, static_cast<unsigned>(bytes));
        position_ += got > 0 ? static_cast<uint64_t>(got) : 0;
        int code = Z_OK;
        const char *text = gzerror(file_.get(), &code);
        if (code == Z_ERRNO) fail(position_, std::string("cannot read it: ") + std::strerror(errno));
        if (code != Z_OK && code != Z_STREAM_END) {
            // zlib unpacks ahead of what was asked for, so only the place in the file means something. Its text begins
            // with "<fd:N>: ", which says nothing to the user.
            const char *colon = std::strstr(text, ": ");
            fail(static_cast<uint64_t>(gzoffset(file_.get())),
                 std::string("the gzip data are damaged (") + (colon ? colon + 2 : text) + "), get the file again");
        }
        return got > 0 ? static_cast<uint64_t>(got) : 0;
    }

    std::string name_;
    std::unique_ptr<gzFile_s, decltype(&gzclose)> file_;
    uint64_t position_ = 0;
};

uint32_t read_number(Input &input, uint64_t expected) {
    uint8_t b[4];
    input.read(b, sizeof b, expected);
    return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
}

void read_header(Input &input, unsigned dimensions, IdxArray &array) {
    const uint64_t header_bytes = 4 + 4 * uint64_t{dimensions};
    const uint32_t magic = read_number(input, header_bytes);
    if (const uint32_t wanted = kUnsignedByte << 8 | dimensions; magic != wanted) {
        char text[160];
        std::snprintf(
            text, sizeof text,
            "the magic number is 0x%08x, not 0x%08x (IDX, unsigned bytes, dimensions: %u): not the right file", magic,
            wanted, dimensions);
        input.fail(0, text);
    }
    for (unsigned i = 0; i < dimensions; ++i)
        array.shape.push_back(read_number(input, header_bytes));
}

// Bytes of one item. Refuses what no picture has, so that nothing below can overflow.
uint64_t item_bytes(const Input &input, const IdxArray &array) {
    uint64_t bytes = 1;
    for (size_t i = 0; i < array.shape.size(); ++i) {
        if (array.shape[i] == 0) input.fail(4 + 4 * i, "an extent is 0: there is nothing to read");
        if (i > 0) bytes *= array.shape[i];
        if (bytes > kMaxItem) input.fail(4 + 4 * i, "one item would have more than 64 MiB: the header is damaged");
    }
    return bytes;
}

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

IdxArray read_idx(int fd, const std::string &name, unsigned dimensions, uint64_t max_items) {
    Input input(fd, name);
    IdxArray array;
    array.gzip = input.gzip();
    // zlib hands a file that is not gzip through as it is; its magic number would be called wrong, which misleads.
    if (ends_with(name, ".gz") && !array.gzip) input.fail(0, "not gzip data, although the name ends in .gz");
    read_header(input, dimensions, array);

    const uint64_t each = item_bytes(input, array);
    const uint64_t header = input.position();
    const uint64_t whole = header + each * array.shape[0];
    const uint64_t items = max_items ? std::min<uint64_t>(max_items, array.shape[0]) : array.shape[0];
    for (uint64_t done = 0; done < each * items;) {
        const uint64_t chunk = std::min(kChunk, each * items - done);
        array.bytes.resize(done + chunk);
        input.read(array.bytes.data() + done, chunk, whole);
        done += chunk;
    }
    // Reading on to the end makes zlib compare its check sum, too.
    if (items == array.shape[0] && !input.at_end())
        input.fail(whole, "the file goes on, but its header announces an end here");
    return array;
}

IdxArray read_idx(const std::string &path, unsigned dimensions, uint64_t max_items) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw std::runtime_error(path + ": cannot open it: " + std::strerror(errno));
    return read_idx(fd, path, dimensions, max_items);
}

} // namespace demo
