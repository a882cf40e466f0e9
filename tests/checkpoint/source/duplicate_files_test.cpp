// Detects one rank's file copied over another's, in checkpoints that shard each tensor over files.
#include "workspace/checkpoint/source/duplicate_files.hpp"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "tests/checkpoint/support/dcp_files.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {
namespace {

using testing::HasSubstr;

FileSample sample(std::string file, std::string tensor, std::uint32_t crc, bool constant = false) {
  std::vector<std::byte> bytes(64);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(constant ? 0 : i);
  return {.file = std::move(file), .tensor = std::move(tensor), .bytes = 64, .crc = crc, .beginning = [bytes] {
            return bytes;
          }};
}

TEST(DuplicateFiles, are_detected_by_equal_checksums_of_all_tensors) {
  try {
    require_no_duplicate_files({sample("a", "w", 7), sample("a", "v", 8), sample("b", "w", 7), sample("b", "v", 8)},
                               "dir");
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_EQ(error.info().resource, "dir");
    EXPECT_THAT(error.info().message, HasSubstr("a and b hold the same bytes"));
    EXPECT_THAT(error.info().got, HasSubstr("and 1 more"));
  }
}

TEST(DuplicateFiles, are_not_reported_for_distinct_ranks) {
  EXPECT_NO_THROW(require_no_duplicate_files(
      {sample("a", "w", 7), sample("a", "v", 8), sample("b", "w", 7), sample("b", "v", 9)}, "dir"));
  EXPECT_NO_THROW(require_no_duplicate_files({}, "dir"));
}

TEST(DuplicateFiles, are_not_reported_for_constant_values) {
  EXPECT_NO_THROW(require_no_duplicate_files({sample("a", "w", 7, true), sample("b", "w", 7, true)}, "dir"));
  EXPECT_NO_THROW(require_no_duplicate_files({sample("a", "w", 0), sample("b", "w", 0)}, "dir"));  // no checksums
}

std::vector<std::vector<float>> pieces(float first) {
  std::vector<std::vector<float>> of_ranks(2);
  for (auto& piece : of_ranks) {
    for (int i = 0; i < 20; ++i) piece.push_back(first++);
  }
  return of_ranks;
}

TEST(DuplicateFiles, are_detected_in_distributed_checkpoints) {
  test::TemporaryDirectory const folder;
  DcpFiles files;
  files.add_chunked({"model", "w"}, pieces(1));
  files.add_chunked({"model", "v"}, pieces(100));
  files.add({"model", "norm"}, {1, 2, 3});
  auto const copy = folder.path() / "copy";
  files.write(folder.path() / "good");
  EXPECT_EQ(values_of(*open_dcp(folder.path() / "good"), "w").size(), 40U);

  // Both files have the same items at the same offsets, because the item that only rank 0 has comes last.
  files.write(copy);
  std::filesystem::copy_file(copy / "__0_0.distcp", copy / "__1_0.distcp",
                             std::filesystem::copy_options::overwrite_existing);
  try {
    (void)open_dcp(copy);
    FAIL();
  } catch (FormatError const& error) {
    EXPECT_THAT(error.info().message, HasSubstr("__1_0.distcp hold the same bytes"));
    EXPECT_EQ(error.section(), "files");
  }
}

TEST(DuplicateFiles, are_not_reported_for_constant_values_in_distributed_checkpoints) {
  test::TemporaryDirectory const folder;
  DcpFiles files;
  files.add_chunked({"model", "w"}, {std::vector<float>(20, 1.0F), std::vector<float>(20, 1.0F)});
  files.write(folder.path());
  EXPECT_EQ(values_of(*open_dcp(folder.path()), "w"), std::vector<float>(40, 1.0F));
}

}  // namespace
}  // namespace crossrank::checkpoint
