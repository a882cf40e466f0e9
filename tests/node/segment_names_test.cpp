#include "lib/node/memory/segment_names.hpp"

#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/platform/files/fd.hpp"

namespace crossrank::node {
namespace {

using platform::Fd;
using testing::Contains;
using testing::Not;

bool exists(std::string const& name) { return Fd(::shm_open(name.c_str(), O_RDONLY, 0)).valid(); }

struct SegmentNames : testing::Test {
  ~SegmentNames() override {
    for (auto const& name : made) ::shm_unlink(name.c_str());
  }
  Fd make(std::string const& name) {
    made.push_back(name);
    return Fd(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600));
  }
  std::vector<std::string> made;
};

TEST_F(SegmentNames, are_swept_without_a_holder) {
  auto const name = unique_segment_name();
  ASSERT_TRUE(make(name));
  sweep_names();  // the sweep of another test may have removed it already
  EXPECT_FALSE(exists(name));
}

TEST_F(SegmentNames, are_kept_while_held) {
  auto const name = unique_segment_name();
  auto const fd = make(name);
  ASSERT_EQ(::flock(fd.get(), LOCK_SH), 0);
  EXPECT_THAT(sweep_names(), Not(Contains(name)));
  EXPECT_TRUE(exists(name));
}

TEST_F(SegmentNames, are_left_alone_when_foreign) {
  auto const foreign = "/crossrank." + std::to_string(::geteuid() + 1) + "." + unique_segment_name().substr(12);
  auto const unlike = "/not-" + unique_segment_name().substr(1);
  ASSERT_TRUE(make(foreign));
  ASSERT_TRUE(make(unlike));
  sweep_names();
  EXPECT_TRUE(exists(foreign));
  EXPECT_TRUE(exists(unlike));
}

TEST_F(SegmentNames, are_unique) {
  EXPECT_NE(unique_segment_name(), unique_segment_name());
  EXPECT_EQ(unique_segment_name().rfind("/" + segment_prefix(), 0), 0U);
}

TEST(JobKey, is_named_by_its_id_or_by_the_master_address) {
  EXPECT_EQ((node::JobKey{.job_id = "7", .master = "host:1"}.text()), "job 7");
  EXPECT_EQ((node::JobKey{.master = "host:1"}.text()), "job at host:1");
}

TEST(JobKey, tells_jobs_apart) {
  JobKey const key{"job", "host:1", "0"};
  EXPECT_EQ(key.digest(), (JobKey{"job", "host:1", "0"}.digest()));
  EXPECT_EQ(key.digest().size(), 32U);
  EXPECT_NE(key.digest(), (JobKey{"job2", "host:1", "0"}.digest()));
  EXPECT_NE(key.digest(), (JobKey{"job", "host:2", "0"}.digest()));
  EXPECT_NE(key.digest(), (JobKey{"job", "host:1", "1"}.digest()));
  EXPECT_NE((JobKey{"ab", "c", ""}.digest()), (JobKey{"a", "bc", ""}.digest()));
}

}  // namespace
}  // namespace crossrank::node
