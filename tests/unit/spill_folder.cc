// SPDX-License-Identifier: Apache-2.0
#include "core/server/spill_folder.h"
#include "core/shm/layout.h"

#include <criterion/criterion.h>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace libcache;

namespace {

bool mentions(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

} // namespace

Test(spill_folder, must_be_absolute_there_and_writable) {
    cr_assert(mentions(spill_folder_fault("var/tmp"), "absolute"));
    cr_assert(mentions(spill_folder_fault("/var/tmp/not/there"), "mkdir -p /var/tmp/not/there"));
    cr_assert(mentions(spill_folder_fault("/etc/passwd"), "Not a directory"));
    cr_assert(mentions(spill_folder_fault("/proc"), "not writable"), "%s", spill_folder_fault("/proc").c_str());
    cr_assert(mentions(spill_folder_fault("/" + std::string(600, 'x')), "longer than 511"));
    const std::string fault = spill_folder_fault("/var/tmp");
    cr_assert(fault.empty(), "%s", fault.c_str());
}

Test(spill_folder, on_nfs_is_refused) {
    cr_assert(is_network_file_system(0x6969));
    cr_assert_not(is_network_file_system(0xef53), "ext4");
}

Test(spill_folder, on_tmpfs_is_spoken_of) {
    struct stat shm;
    if (stat("/dev/shm", &shm) != 0) cr_skip_test("no /dev/shm");
    cr_assert(mentions(spill_folder_advice("/dev/shm"), "tmpfs"), "%s", spill_folder_advice("/dev/shm").c_str());
    const std::string advice = spill_folder_advice("/var/tmp");
    cr_assert(advice.empty(), "%s", advice.c_str());
}

Test(spill_folder, in_tmp_on_the_system_disk_is_spoken_of) {
    struct stat root, tmp;
    cr_assert(stat("/", &root) == 0 && stat("/tmp", &tmp) == 0);
    const bool same = root.st_dev == tmp.st_dev;
    cr_assert_eq(mentions(spill_folder_advice("/tmp"), "system disk"), same);
    cr_assert_not(mentions(spill_folder_advice("/tmpfoo"), "system disk"));
}

Test(spill_folder, holds_files_without_a_name) {
    char folder[] = "/var/tmp/lcspill-XXXXXX";
    cr_assert_not_null(mkdtemp(folder));
    Fd file;
    cr_assert_eq(make_spill_file(folder, &file), 0);
    cr_assert_eq(pwrite(file.get(), "x", 1, 0), 1);
    cr_assert_eq(rmdir(folder), 0, "nothing stands in it");
    cr_assert_geq(spill_segments_of("/var/tmp"), 1);
    cr_assert_leq(spill_segments_of("/var/tmp"), kMaxRunChunks);
    cr_assert_gt(file_system_room(file.get()), 0);
}
