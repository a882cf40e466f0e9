#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/mpi.hpp>

#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Run by mpirun. The last rank does not come, and the others must not wait for it forever.
namespace crossrank::test {
namespace {

std::filesystem::path folder() { return std::getenv("CROSSRANK_TEST_FOLDER"); }
int launched(char const* what) { return std::stoi(std::getenv(what)); }

/// When one rank ends, mpirun ends the others. So each rank waits until all have written their error.
void wait_until_all_were_told(int ranks) {
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int rank = 0; rank < ranks && std::chrono::steady_clock::now() < until; std::this_thread::yield()) {
    std::error_code absent;
    auto const size = std::filesystem::file_size(folder() / std::to_string(rank), absent);
    if (!absent && size != 0) ++rank;
  }
}

template <class Connect>
void expect_timeout(Connect connect) {
  int const rank = launched("OMPI_COMM_WORLD_RANK");
  int const last = launched("OMPI_COMM_WORLD_SIZE") - 1;
  if (rank != last) {
    auto const start = std::chrono::steady_clock::now();
    auto const info = error_of<TimeoutError>(connect);
    auto const took = std::chrono::steady_clock::now() - start;
    EXPECT_THAT(info.message, testing::HasSubstr("not all ranks came"));
    auto const written = folder() / ("." + std::to_string(rank));
    std::ofstream(written) << info.message << "\n"
                           << std::chrono::duration_cast<std::chrono::milliseconds>(took).count() << " ms\n";
    std::filesystem::rename(written, folder() / std::to_string(rank));
  }
  wait_until_all_were_told(last);
  ::_exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST(MpiStart, ends_in_time_when_a_rank_does_not_come_to_init) {
  expect_timeout([] { static_cast<void>(connect({.backend = "mpi", .connect_timeout = std::chrono::seconds(2)})); });
}

TEST(MpiStart, ends_in_time_when_a_rank_does_not_come_to_the_communicator) {
  int provided = 0;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), MPI_SUCCESS);
  expect_timeout([] { static_cast<void>(mpi::connect(MPI_COMM_WORLD, {.connect_timeout = std::chrono::seconds(2)})); });
}

}  // namespace
}  // namespace crossrank::test
