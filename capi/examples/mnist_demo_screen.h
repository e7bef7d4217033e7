// SPDX-License-Identifier: Apache-2.0
// What appears on the screen: a progress line while a phase runs, and a table that grows by a line for each phase.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

std::string with_commas(int64_t number); // 60000 -> "60,000"; number >= 0

// A line on stderr that is drawn over and over and erased at the end; nothing at all where stderr is no terminal.
class ProgressLine {
  public:
    ProgressLine(std::string what, int64_t total);
    ~ProgressLine();
    ProgressLine(const ProgressLine &) = delete;
    ProgressLine &operator=(const ProgressLine &) = delete;
    void show(int64_t done);

  private:
    std::string what_;
    int64_t total_;
    int64_t drawn_at_ns_ = 0;
    bool terminal_;
};

// A table on stdout; the first two columns are aligned left, the others right.
class Table {
  public:
    struct Column {
        const char *title;
        int width;
    };
    explicit Table(std::vector<Column> columns); // prints the head
    void line(const std::vector<std::string> &cells) const;
    void rule() const;

  private:
    std::vector<Column> columns_;
};

} // namespace demo
