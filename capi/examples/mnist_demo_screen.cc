// SPDX-License-Identifier: Apache-2.0
#include "capi/examples/mnist_demo_screen.h"

#include <chrono>
#include <cstdio>
#include <unistd.h>

namespace demo {
namespace {

constexpr int64_t kRedrawNs = 50'000'000; // 20 times a second
constexpr int kBar = 30;                  // characters

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

} // namespace

std::string with_commas(int64_t number) {
    const std::string digits = std::to_string(number);
    std::string text;
    for (size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

ProgressLine::ProgressLine(std::string what, int64_t total)
    : what_(std::move(what)), total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
    if (drawn_at_ns_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::show(int64_t done) {
    if (!terminal_ || now_ns() - drawn_at_ns_ < kRedrawNs) return;
    drawn_at_ns_ = now_ns();
    const int filled = total_ ? static_cast<int>(kBar * done / total_) : kBar;
    std::fprintf(stderr, "\r%-8s [%.*s%*s] %s of %s rows", what_.c_str(), filled, "##############################",
                 kBar - filled, "", with_commas(done).c_str(), with_commas(total_).c_str());
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    std::vector<std::string> titles;
    for (const Column &column : columns_)
        titles.emplace_back(column.title);
    line(titles);
    rule();
}

void Table::line(const std::vector<std::string> &cells) const {
    for (size_t i = 0; i < columns_.size(); ++i)
        std::printf("%s%*s", i ? "  " : "", i < 2 ? -columns_[i].width : columns_[i].width, cells[i].c_str());
    std::printf("\n");
    std::fflush(stdout); // a phase shows when it is over, also through a pipe
}

void Table::rule() const {
    size_t width = 2 * (columns_.size() - 1);
    for (const Column &column : columns_)
        width += static_cast<size_t>(column.width);
    std::printf("%s\n", std::string(width, '-').c_str());
}

} // namespace demo
