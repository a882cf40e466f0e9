// The other ranks of a host remove the folder of a job whose rank 0 has died.
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/platform/files/directory.hpp"
#include "tests/checkpoint/write/interrupted.hpp"
#include "tests/support/faulty_system.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/job/orphaned_job.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

class OrphanedJob : public test::Interrupted {
 protected:
  /// Kills a job, whose folder stays.
  void leave_folder(std::string const& point = "checkpoint.slice.written", int visit = 2) {
    kill_at(point, visit);
    id_ = left_folder().filename().string().substr(folder_name({}).size());
  }
  void clean_up(OutputFolder output = OutputFolder::found) const { remove_orphaned_job(out(), id_, output); }
  [[nodiscard]] std::optional<platform::Fd> lock_folder() const {
    return take_lock(platform::Directory::open(left_folder(), "test"));
  }

  std::string id_{};
};

TEST_F(OrphanedJob, is_removed) {
  leave_folder();
  clean_up();
  EXPECT_EQ(left_folder(), "");
  EXPECT_EQ(state(), "old");
}

TEST_F(OrphanedJob, is_committed_when_its_rank_0_had_begun_to) {
  for (auto const* point : {"checkpoint.commit.planned", "checkpoint.commit.moved_old", "checkpoint.commit.named",
                            "checkpoint.commit.done"}) {
    put_old();
    leave_folder(point, 1);
    clean_up();
    EXPECT_EQ(left_folder(), "") << point;
    EXPECT_EQ(state(), "new") << point;
  }
}

TEST_F(OrphanedJob, takes_the_empty_output_that_it_had_made_with_it) {
  fs::remove_all(out());
  leave_folder();
  clean_up(OutputFolder::made_by_job);
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(OrphanedJob, is_removed_when_the_kernel_has_released_its_lock) {
  leave_folder();
  auto lock = lock_folder();
  test::FaultySystem os;
  os.fake_clock();
  os.on_sleep = [&] {
    if (os.sleeps() == 10) lock.reset();
  };
  platform::ScopedSystem const scope(os);
  clean_up();
  EXPECT_EQ(left_folder(), "");
}

TEST_F(OrphanedJob, stays_after_a_limited_wait_while_its_rank_0_lives) {
  leave_folder();
  auto const lock = lock_folder();
  test::FaultySystem os;
  os.fake_clock();
  platform::ScopedSystem const scope(os);
  clean_up();
  EXPECT_NE(left_folder(), "");
  EXPECT_GT(os.sleeps(), 1000);
}

TEST_F(OrphanedJob, stays_where_no_lock_says_whether_its_rank_0_lives) {
  leave_folder();
  test::FaultySystem os;
  os.fail_always(test::Call::flock, ENOLCK);
  platform::ScopedSystem const scope(os);
  clean_up();
  EXPECT_NE(left_folder(), "");
}

}  // namespace
}  // namespace crossrank::checkpoint
