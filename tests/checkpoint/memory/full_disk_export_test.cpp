// The disk of one rank is full: every rank gets the same typed error, and the output keeps the old checkpoint.
#include <cerrno>
#include <filesystem>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/error.hpp>
#include <crossrank/safetensors.hpp>

#include "lib/platform/system.hpp"
#include "tests/checkpoint/support/checkpoint_files.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank::full_disk_export_test {
namespace {

namespace fs = std::filesystem;

constexpr int ranks = 3;
constexpr int refused = 5;

/// An operating system whose disk is full when `call` is used. Shared memory has space.
class FullDisk final : public platform::System {
 public:
  explicit FullDisk(std::string call) : call_(std::move(call)) {}
  ssize_t pwrite(int fd, void const* from, std::size_t bytes, off_t at) override {
    return fails("pwrite", fd) ? -1 : System::pwrite(fd, from, bytes, at);
  }
  int fsync(int fd) override { return fails("fsync", fd) ? -1 : System::fsync(fd); }
  int fallocate(int fd, int mode, off_t at, off_t bytes) override {
    return fails("fallocate", fd) ? -1 : System::fallocate(fd, mode, at, bytes);
  }

 private:
  bool fails(std::string const& call, int fd) const {
    bool const in_memory = ::fcntl(fd, F_GET_SEALS) >= 0;
    if (call != call_ || in_memory) return false;
    errno = ENOSPC;
    return true;
  }
  std::string call_;
};

/// A row of each of six tensors, which become six files.
StateDict rows(int rank) {
  StateDict weights;
  for (int i = 0; i < 6; ++i)
    weights.insert("w" + std::to_string(i), Tensor::of<float>({static_cast<float>(rank), 1, 2, 3}, {1, 4}));
  return weights;
}

/// Exports to `arguments[0]` with the call `arguments[1]`. The disk of rank `arguments[2]` is full for `arguments[3]`.
/// Returns 5 after the expected error.
CROSSRANK_RANK_SCENARIO(export_to_a_full_disk) {
  auto const world = connect({.timeout = test::step_timeout});
  int const writer = std::stoi(self.arguments.at(2));
  checkpoint::Placements const placements{.otherwise = {.placements = {checkpoint::Shard{0}}}};
  checkpoint::ExportOptions const options{.max_shard_bytes = 50, .force = true};
  FullDisk disk(world.rank() == writer ? self.arguments.at(3) : "none");
  platform::ScopedSystem const scope(disk);
  try {
    if (self.arguments.at(1) == "iconsolidate") {
      checkpoint::iconsolidate(world, rows(self.rank), placements, self.arguments.at(0), {.write = options}).wait();
    } else {
      (void)checkpoint::consolidate(world, rows(self.rank), placements, self.arguments.at(0), options);
    }
  } catch (IoError const& error) {
    EXPECT_EQ(error.info().system_errno, ENOSPC) << error.report();
    if (world.rank() != writer) {
      EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(writer)) << error.report();
    }
    world.barrier();
    return refused;
  }
  return 0;
}

class FullDiskExport : public testing::TestWithParam<char const*> {};

TEST_P(FullDiskExport, fails_on_all_ranks_and_keeps_the_old_checkpoint) {
  StateDict const old{{"old", Tensor::of<float>({7}, {1})}};
  for (int const writer : {0, ranks - 1}) {
    for (auto const* const call : {"pwrite", "fsync", "fallocate"}) {
      SCOPED_TRACE(std::string(call) + " of rank " + std::to_string(writer));
      test::TemporaryDirectory const folder;
      auto const out = folder.path() / "out";
      fs::create_directories(out);
      save_safetensors(out / "model.safetensors", old);

      auto const outcome = test::run_ranks(ranks, "export_to_a_full_disk",
                                           {.arguments = {out, GetParam(), std::to_string(writer), call}});

      for (auto const& rank : outcome.ranks) EXPECT_EQ(rank.exit_code, refused) << outcome.text();
      EXPECT_THAT(outcome.leaks, testing::IsEmpty());
      EXPECT_THAT(test::names_in(out), testing::ElementsAre("model.safetensors"));
      EXPECT_FLOAT_EQ(load_safetensors(out / "model.safetensors").at("old").as<float>()[0], 7);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, FullDiskExport, testing::Values("consolidate", "iconsolidate"),
                         [](auto const& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace crossrank::full_disk_export_test
