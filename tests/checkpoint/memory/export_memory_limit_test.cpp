// The memory of a rank beyond its weights, as the kernel counts it, while it exports.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/collective.hpp>
#include <crossrank/checkpoint/memory_export.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/process_ranks.hpp"
#include "tests/support/temporary_directory.hpp"

namespace crossrank::export_memory_limit_test {
namespace {

/// Returns a field of /proc/self/status, such as "VmHWM:", in bytes.
std::uint64_t status_bytes(std::string const& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field) continue;
    std::uint64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes << 10;
  }
  return 0;
}

/// Sets the kernel's peak to what this process uses now.
void restart_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Rules know this name. Tensor-parallel ranks hold rows of it.
constexpr char const* large = "lm_head.weight";

/// Returns this rank's rows of `tensors` matrices of experts, and of one large matrix.
StateDict pieces(int rank, int tensors, std::int64_t large_bytes) {
  constexpr std::array parts{"gate", "up", "down"};
  constexpr std::int64_t rows = 1024;
  StateDict weights;
  for (int i = 0; i < tensors; ++i) {
    int const expert = i / static_cast<int>(parts.size());
    auto const name = "model.layers." + std::to_string(expert / 256) + ".mlp.experts." + std::to_string(expert % 256) +
                      "." + parts.at(as_size(i) % parts.size()) + "_proj.weight";
    weights.insert(name, Tensor::zeros({1, 16}, Dtype::bf16));
  }
  if (large_bytes > 0) weights.insert(large, Tensor::zeros({rows, large_bytes / rows}, Dtype::u8));
  // The kernel counts all pages of the weights before the export.
  for (auto& [name, tensor] : weights) std::memset(tensor.mutable_bytes().data(), rank, tensor.nbytes());
  return weights;
}

/// Exports `arguments[2]` small tensors and a large one of `arguments[3]` bytes on each rank to `arguments[0]`. The
/// ranks are one sharded group, or tensor-parallel if `arguments[1]` is "tp". Returns 0 if the memory of this rank grew
/// by at most `arguments[4]` bytes.
CROSSRANK_RANK_SCENARIO(export_within_memory) {
  auto const world = connect();
  auto const weights = pieces(self.rank, std::stoi(self.arguments.at(2)), std::stoll(self.arguments.at(3)));
  checkpoint::Placements placements;
  if (self.arguments.at(1) == "tp") {
    placements.tp_rank = self.rank;
    placements.tp = self.world_size;
  } else {
    // Columns of all ranks alternate in the large matrix, so every block is put together.
    placements.otherwise = {.placements = {checkpoint::Shard{0}}};
    if (weights.find(large) != nullptr) placements.tensors[large] = {.placements = {checkpoint::Shard{1}}};
  }
  world.barrier();
  restart_peak();
  auto const before = status_bytes("VmHWM:");
  (void)checkpoint::consolidate(world, weights, placements, self.arguments.at(0));
  auto const growth = status_bytes("VmHWM:") - before;
  EXPECT_LE(growth, std::stoull(self.arguments.at(4)));
  EXPECT_GT(growth, std::uint64_t{1} << 20);
  return 0;
}

constexpr int ranks = 4;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// Expects that the memory of each rank grows by at most `limit` bytes.
void expect_growth_within(std::uint64_t limit, std::string const& kind, int tensors, std::uint64_t large_bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps memory that the program has freed";
#endif
  test::TemporaryDirectory const folder;
  auto const outcome = test::run_ranks(ranks, "export_within_memory",
                                       {.arguments = {folder.path() / "out", kind, std::to_string(tensors),
                                                      std::to_string(large_bytes), std::to_string(limit)}});
  EXPECT_TRUE(outcome.ok()) << outcome.text();
}

/// Returns the memory that the names and the plan of so many tensors may need.
constexpr std::uint64_t limit_of_plan(int tensors, int tp) {
  return static_cast<std::uint64_t>(tensors) * static_cast<std::uint64_t>(1250 + 200 * tp) + 16 * mebibyte;
}

TEST(ExportMemoryLimit, is_256_MiB_for_the_bytes_of_a_large_tensor) {
  expect_growth_within(256 * mebibyte, "sharded", 1000, 128 * mebibyte);
}

TEST(ExportMemoryLimit, is_256_MiB_with_the_names_and_the_plan_of_100_000_tensors_on_4_tensor_parallel_ranks) {
  expect_growth_within(256 * mebibyte, "tp", 100'000, 128 * mebibyte);
}

TEST(ExportMemoryLimit, grows_with_the_number_of_names) {
  constexpr int tensors = 100'000;
  expect_growth_within(limit_of_plan(tensors, 1), "sharded", tensors, 0);
}

TEST(ExportMemoryLimit, grows_with_the_number_of_tensor_parallel_ranks) {
  constexpr int tensors = 30'000;
  expect_growth_within(limit_of_plan(tensors, ranks), "tp", tensors, 0);
}

}  // namespace
}  // namespace crossrank::export_memory_limit_test
