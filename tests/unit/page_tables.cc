// SPDX-License-Identifier: Apache-2.0
#include "core/client/page_tables.h"

#include <criterion/criterion.h>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

using libcache::page_table_bytes_in;

namespace {

// As the kernel writes it, what is not read left out.
const char *const kMaps = "559000000000-559000400000 r-xp 00000000 fe:00 77                         /usr/bin/program\n"
                          "Size:               4096 kB\nRss:                4096 kB\nShmemPmdMapped:        0 kB\n"
                          "7f0000000000-7f0040000000 r--s 00000000 00:2a 1234                       /#1234 (deleted)\n"
                          "Size:            1048576 kB\nRss:               10240 kB\nShmemPmdMapped:     6144 kB\n"
                          "7f0040000000-7f0080000000 rw-s 00000000 00:2a 1234                       /#1234 (deleted)\n"
                          "Size:            1048576 kB\nRss:                 100 kB\nShmemPmdMapped:        0 kB\n"
                          "7f0080000000-7f0080100000 rw-s 00000000 00:2a 99                         /#99 (deleted)\n"
                          "Size:               1024 kB\nRss:                   0 kB\nShmemPmdMapped:        0 kB\n";

int64_t tables_at(uint64_t address, uint64_t page = 4096) {
    std::istringstream text(kMaps);
    return page_table_bytes_in(text, address, page);
}

// Bytes that this process has read from files so far.
int64_t bytes_read() {
    std::ifstream io("/proc/self/io");
    std::string name;
    int64_t bytes = -1;
    io >> name >> bytes;
    cr_assert_eq(name, "rchar:");
    return bytes;
}

} // namespace

Test(page_tables, of_all_mappings_of_the_same_file) {
    // 4 MiB on small pages: two tables; 100 KiB: one; and one above each
    cr_assert_eq(tables_at(0x7f0000001000), (2 + 1 + 1 + 1) * 4096);
    cr_assert_eq(tables_at(0x7f0040001000), (2 + 1 + 1 + 1) * 4096);
}

Test(page_tables, of_larger_pages) {
    // of 64 KiB: a table spans 512 MiB, so each mapping has one, and one above it
    cr_assert_eq(tables_at(0x7f0000001000, 64 << 10), (1 + 1 + 1 + 1) * (64 << 10));
}

Test(page_tables, of_what_nobody_has_touched_are_none) {
    cr_assert_eq(tables_at(0x7f0080000000), 0);
}

Test(page_tables, of_what_is_not_mapped_are_unknown) {
    cr_assert_eq(tables_at(0x1000), -1);
}

Test(page_tables, are_not_read_again_at_once) {
    libcache::PageTableBytes tables;
    char here = 0;
    const int64_t before = bytes_read();
    tables.of(&here);
    const int64_t once = bytes_read() - before;
    for (int i = 0; i < 10000; i++)
        tables.of(&here);
    const int64_t again = bytes_read() - before - once;
    // 100 more readings would mean that this took as long as 10,000 of them.
    cr_assert_lt(again, 100 * once, "%lld bytes were read for the first answer, %lld for the 10,000 that followed",
                 static_cast<long long>(once), static_cast<long long>(again));
    const pid_t child = fork(); // whose mappings are its own
    if (child == 0) {
        const int64_t inherited = bytes_read();
        tables.of(&here);
        _exit(bytes_read() - inherited > once / 2 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    cr_assert_eq(status, 0, "the child believed its parent's answer: wait status %d", status);
}
