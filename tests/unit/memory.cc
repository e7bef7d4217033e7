// SPDX-License-Identifier: Apache-2.0
// How much memory the server may use, read from recorded files: machines, cgroup v2 and v1, nested and in containers.
#include "core/server/memory.h"

#include <criterion/criterion.h>
#include <filesystem>
#include <fstream>
#include <string>

using libcache::Memory;

namespace {

constexpr uint64_t MiB = 1 << 20, GiB = 1 << 30;

// A folder that stands for "/".
class Root {
  public:
    Root() {
        const char *base = getenv("TMPDIR");
        std::string path = std::string(base ? base : "/tmp") + "/lcm-XXXXXX";
        cr_assert_not_null(mkdtemp(path.data()));
        path_ = path;
        write("/proc/meminfo",
              "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:   12582912 kB\n");
    }
    Root(const Root &) = delete;
    Root &operator=(const Root &) = delete;
    ~Root() { std::filesystem::remove_all(path_); }
    Root &write(const std::string &file, const std::string &text) {
        std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
        std::ofstream(path_ + file) << text;
        return *this;
    }
    Memory memory() const { return Memory(path_); }

  private:
    std::string path_;
};

} // namespace

Test(memory, without_cgroups_is_the_machines) {
    Root root;
    cr_assert_eq(root.memory().total_bytes(), 16 * GiB);
    cr_assert_leq(root.memory().room_bytes(), 12 * GiB);
    cr_assert_gt(root.memory().room_bytes(), 11 * GiB, "the margin is too large");
}

Test(memory, cgroup_v2_limits_count_all_the_way_up) {
    Root root;
    root.write("/proc/self/cgroup", "0::/slurm/job7/step0\n")
        .write("/proc/self/mountinfo",
               "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n")
        .write("/sys/fs/cgroup/slurm/job7/step0/memory.max", "max\n")
        .write("/sys/fs/cgroup/slurm/job7/step0/memory.current", "104857600\n")
        .write("/sys/fs/cgroup/slurm/job7/memory.max", "1073741824\n")
        .write("/sys/fs/cgroup/slurm/job7/memory.current", "536870912\n")
        .write("/sys/fs/cgroup/slurm/memory.max", "4294967296\n")
        .write("/sys/fs/cgroup/slurm/memory.current", "1000000000\n");
    cr_assert_eq(root.memory().total_bytes(), GiB);
    cr_assert_lt(root.memory().room_bytes(), 512 * MiB);
    cr_assert_gt(root.memory().room_bytes(), 400 * MiB);
}

Test(memory, a_limit_that_only_slows_down_counts_too) {
    Root root;
    root.write("/proc/self/cgroup", "0::/a\n")
        .write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
        .write("/sys/fs/cgroup/a/memory.max", "4294967296\n")
        .write("/sys/fs/cgroup/a/memory.high", "1073741824\n")
        .write("/sys/fs/cgroup/a/memory.current", "536870912\n");
    cr_assert_eq(root.memory().total_bytes(), GiB);
    cr_assert_lt(root.memory().room_bytes(), 512 * MiB);
    root.write("/sys/fs/cgroup/a/memory.high", "max\n");
    cr_assert_eq(root.memory().total_bytes(), 4 * GiB);
}

Test(memory, cached_files_of_a_cgroup_are_room) {
    Root root;
    root.write("/proc/self/cgroup", "0::/a\n")
        .write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
        .write("/sys/fs/cgroup/a/memory.max", "1073741824\n")
        .write("/sys/fs/cgroup/a/memory.current", "1000000000\n")
        .write("/sys/fs/cgroup/a/memory.stat", "anon 100000000\nfile 900000000\ninactive_file 500000000\n"
                                               "active_file 300000000\nshmem 100000000\n");
    cr_assert_gt(root.memory().room_bytes(), 800 * MiB - 64 * MiB);
    cr_assert_lt(root.memory().room_bytes(), 874 * MiB);
}

Test(memory, a_full_cgroup_has_no_room) {
    Root root;
    root.write("/proc/self/cgroup", "0::/a\n")
        .write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
        .write("/sys/fs/cgroup/a/memory.max", "1073741824\n")
        .write("/sys/fs/cgroup/a/memory.current", "1073741000\n");
    cr_assert_eq(root.memory().room_bytes(), 0);
    root.write("/sys/fs/cgroup/a/memory.current", "2000000000\n"); // over its limit, for a moment
    cr_assert_eq(root.memory().room_bytes(), 0);
}

Test(memory, a_container_sees_its_own_group_as_the_root) {
    Root root;
    root.write("/proc/self/cgroup", "0::/docker/0123abcd\n")
        .write("/proc/self/mountinfo", "30 24 0:26 /docker/0123abcd /sys/fs/cgroup ro master:4 - cgroup2 cgroup rw\n")
        .write("/sys/fs/cgroup/memory.max", "2147483648\n")
        .write("/sys/fs/cgroup/memory.current", "0\n");
    cr_assert_eq(root.memory().total_bytes(), 2 * GiB);
}

Test(memory, a_namespace_root_counts_too) {
    Root root;
    root.write("/proc/self/cgroup", "0::/\n")
        .write("/proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
        .write("/sys/fs/cgroup/memory.max", "3221225472\n")
        .write("/sys/fs/cgroup/memory.current", "1\n");
    cr_assert_eq(root.memory().total_bytes(), 3 * GiB);
}

Test(memory, cgroup_v1_limits_count_and_its_no_limit_is_none) {
    Root root;
    root.write("/proc/self/cgroup", "11:cpu,cpuacct:/x\n9:memory:/job/inner\n1:name=systemd:/y\n")
        .write("/proc/self/mountinfo", "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                                       "32 24 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n")
        .write("/sys/fs/cgroup/memory/job/inner/memory.limit_in_bytes", "9223372036854771712\n")
        .write("/sys/fs/cgroup/memory/job/inner/memory.usage_in_bytes", "1000\n")
        .write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5368709120\n")
        .write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4831838208\n")
        .write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert_eq(root.memory().total_bytes(), 5 * GiB);
    cr_assert_lt(root.memory().room_bytes(), 512 * MiB);
    cr_assert_gt(root.memory().room_bytes(), 300 * MiB);
}

Test(memory, files_that_are_missing_or_nonsense_are_no_limit) {
    Root root;
    root.write("/proc/self/cgroup", "nonsense\n0::/gone\n::::\n\n")
        .write("/proc/self/mountinfo", "30 24\n\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        .write("/sys/fs/cgroup/memory.max", "not a number\n");
    cr_assert_eq(root.memory().total_bytes(), 16 * GiB);
}

Test(memory, of_this_machine_is_something) {
    const Memory memory;
    cr_assert_gt(memory.total_bytes(), 64 * MiB);
    cr_assert_leq(memory.room_bytes(), memory.total_bytes());
}

Test(memory, headroom_is_a_tenth_but_two_GiB_or_a_quarter_of_less) {
    constexpr uint64_t GiB = uint64_t{1} << 30;
    cr_assert_eq(libcache::default_headroom(100 * GiB), 10 * GiB);
    cr_assert_eq(libcache::default_headroom(20 * GiB), 2 * GiB);
    cr_assert_eq(libcache::default_headroom(10 * GiB), 2 * GiB);
    cr_assert_eq(libcache::default_headroom(4 * GiB), GiB);
    cr_assert_eq(libcache::default_headroom(256 << 20), 64 << 20);
}
