#include "lib/platform/cgroup.hpp"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/fake_procfs.hpp"

namespace crossrank::platform {
namespace {

using test::FakeProcFs;

constexpr auto unified = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
constexpr auto legacy =
    "31 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

TEST(CgroupLimits, are_those_of_the_own_group_and_not_of_the_root) {
  FakeProcFs kernel("0::/system.slice/job.scope", unified,
                    {{"/sys/fs/cgroup/system.slice/memory.max", "max"},
                     {"/sys/fs/cgroup/system.slice/job.scope/memory.max", "157286400"},
                     {"/sys/fs/cgroup/system.slice/job.scope/cpu.max", "250000 100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 157'286'400U);
  EXPECT_EQ(cgroup_limits().cpus, 2);
  EXPECT_LE(usable_memory(), 157'286'400U);
}

TEST(FreeMemory, is_what_the_machine_has_available) {
  FakeProcFs kernel("0::/job", unified,
                    {{"/proc/meminfo", "MemTotal:  4000 kB\nMemFree:  10 kB\nMemAvailable:  300 kB\n"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(free_memory(), 300U * 1024);
}

TEST(FreeMemory, is_what_the_control_groups_leave_besides_the_page_cache) {
  FakeProcFs kernel("0::/slurm/job", unified,
                    {{"/proc/meminfo", "MemAvailable:  1000000 kB\n"},
                     {"/sys/fs/cgroup/slurm/memory.max", "9000000"},
                     {"/sys/fs/cgroup/slurm/memory.current", "8000000"},
                     {"/sys/fs/cgroup/slurm/job/memory.max", "4000000"},
                     {"/sys/fs/cgroup/slurm/job/memory.current", "3500000"},
                     {"/sys/fs/cgroup/slurm/job/memory.stat", "anon 2000000\nfile 1500000\ninactive_file 1200000\n"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(free_memory(), 1'000'000U) << "the group above leaves less";
}

TEST(FreeMemory, is_none_in_a_control_group_that_is_full) {
  FakeProcFs kernel("4:memory:/job", legacy,
                    {{"/proc/meminfo", "MemAvailable:  1000000 kB\n"},
                     {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "4000000"},
                     {"/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "4100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(free_memory(), 0U);
}

TEST(CgroupLimits, are_the_smallest_up_to_the_root) {
  FakeProcFs kernel("0::/slurm/job_7/step_0", unified,
                    {{"/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "4000000"},
                     {"/sys/fs/cgroup/slurm/job_7/memory.max", "3000000"},
                     {"/sys/fs/cgroup/slurm/memory.max", "5000000"},
                     {"/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000"},
                     {"/sys/fs/cgroup/slurm/cpu.max", "50000 100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 3'000'000U);
  EXPECT_EQ(cgroup_limits().cpus, 1) << "half a processor counts as one";
}

TEST(CgroupLimits, are_read_of_version_1) {
  FakeProcFs kernel("9:cpu,cpuacct:/slurm/uid_0/job_7\n4:memory:/slurm/uid_0/job_7\n1:name=systemd:/elsewhere", legacy,
                    {{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"},
                     {"/sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "157286400"},
                     {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"},
                     {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000"},
                     {"/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_quota_us", "400000"},
                     {"/sys/fs/cgroup/cpu,cpuacct/slurm/cpu.cfs_period_us", "100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 157'286'400U);
  EXPECT_EQ(cgroup_limits().cpus, 4);
}

/// Both versions at once: one has the memory limit, the other the processor limit.
TEST(CgroupLimits, are_read_of_both_versions_at_once) {
  FakeProcFs kernel("4:memory:/job\n0::/user.slice/job",
                    std::string(legacy) + "\n40 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
                    {{"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000"},
                     {"/sys/fs/cgroup/unified/user.slice/job/cpu.max", "300000 100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 1'000'000U);
  EXPECT_EQ(cgroup_limits().cpus, 3);
}

/// In a namespace of its own, the process sees its group as the root, and the root has limits.
TEST(CgroupLimits, are_read_inside_a_namespace) {
  FakeProcFs kernel("0::/", unified,
                    {{"/sys/fs/cgroup/memory.max", "2000000"}, {"/sys/fs/cgroup/cpu.max", "200000 100000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 2'000'000U);
  EXPECT_EQ(cgroup_limits().cpus, 2);
}

/// A container without a namespace mounts its part of the tree but sees the host's names.
TEST(CgroupLimits, are_read_where_a_part_of_the_tree_is_mounted) {
  FakeProcFs kernel("4:memory:/docker/0a1b/worker",
                    "33 31 0:29 /docker/0a1b /sys/fs/cgroup\\040tree/memory rw - cgroup cgroup rw,memory",
                    {{"/sys/fs/cgroup tree/memory/memory.limit_in_bytes", "2000000"},
                     {"/sys/fs/cgroup tree/memory/worker/memory.limit_in_bytes", "1000000"}});
  ScopedSystem const installed(kernel);
  EXPECT_EQ(cgroup_limits().memory_bytes, 1'000'000U);
}

/// A group outside the namespace, or in another part of the tree, has no folder here. The folders above it count.
TEST(CgroupLimits, fall_back_to_the_top_of_the_mount) {
  for (auto const& [group, root] : {std::pair("/../sibling", "/"), std::pair("/docker/0a1bc", "/docker/0a1b")}) {
    FakeProcFs kernel("0::" + std::string(group),
                      "30 24 0:26 " + std::string(root) + " /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
                      {{"/sys/fs/cgroup/memory.max", "2000000"},
                       {"/sys/fs/sibling/memory.max", "7"},
                       {"/sys/fs/cgroupc/memory.max", "7"}});
    ScopedSystem const installed(kernel);
    EXPECT_EQ(cgroup_limits().memory_bytes, 2'000'000U) << group;
  }
}

TEST(CgroupLimits, are_empty_when_nothing_can_be_read) {
  FakeProcFs kernel;
  ScopedSystem const installed(kernel);
  EXPECT_FALSE(cgroup_limits().memory_bytes);
  kernel.own_groups("nonsense\n0:\n0::");
  kernel.mounts("30 24\n - \n30 24 0:26 / /sys/fs/cgroup rw - cgroup2");
  EXPECT_FALSE(cgroup_limits().memory_bytes);
  EXPECT_FALSE(cgroup_limits().cpus);
}

}  // namespace
}  // namespace crossrank::platform
