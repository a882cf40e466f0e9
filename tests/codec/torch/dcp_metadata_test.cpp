#include "lib/codec/torch/dcp_metadata.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/codec/torch/dcp_metadata_writer.hpp"

namespace crossrank::codec {
namespace {

std::vector<std::byte> bytes_of(std::string const& text) {
  auto const bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A matrix in two files, a scalar, an empty tensor and an object, with numbers of all widths.
DcpMetadata sample_metadata() {
  DcpMetadata metadata;
  metadata.tensors.push_back({.name = "model.0.weight",
                              .path = {"model", "0.weight"},
                              .dtype = Dtype::bf16,
                              .shape = {70'000, 3},
                              .boxes = {{{0, 0}, {60'000, 3}}, {{60'000, 0}, {10'000, 3}}},
                              .items = {{"__0_0.distcp", 0, 400'000}, {"__1_0.distcp", std::uint64_t{1} << 40U, 300}}});
  metadata.tensors.push_back({.name = "optim.state.n\u00e4me.step",
                              .path = {"optim", "state", "n\u00e4me", "step"},
                              .dtype = Dtype::f64,
                              .boxes = {{}},
                              .items = {{"__0_0.distcp", 400'000, 256}}});
  metadata.tensors.push_back({.name = "model.empty",
                              .path = {"model", "empty"},
                              .dtype = Dtype::f32,
                              .shape = {0, 7},
                              .boxes = {{{0, 0}, {0, 7}}},
                              .items = {{"__0_0.distcp", 400'256, 99}}});
  metadata.objects.push_back({.name = "optim.param_groups.0.lr",
                              .path = {"optim", "param_groups", "0", "lr"},
                              .item = {"__0_0.distcp", 400'355, 1'000}});
  return metadata;
}

bool same_item(DcpItem const& a, DcpItem const& b) {
  return a.file == b.file && a.offset == b.offset && a.length == b.length;
}

TEST(DcpMetadata, is_read_as_it_was_written) {
  auto const written = sample_metadata();
  auto const read = read_dcp_metadata(bytes_of(write_dcp_metadata(written)), "test");
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (std::size_t i = 0; i < written.tensors.size(); ++i) {
    auto const& expected = written.tensors[i];
    auto const& got = read.tensors[i];
    EXPECT_EQ(got.name, expected.name);
    EXPECT_EQ(got.path, expected.path);
    EXPECT_EQ(got.dtype, expected.dtype);
    EXPECT_EQ(got.shape, expected.shape);
    ASSERT_EQ(got.boxes.size(), expected.boxes.size());
    for (std::size_t k = 0; k < got.boxes.size(); ++k) {
      EXPECT_EQ(got.boxes[k].begin, expected.boxes[k].begin);
      EXPECT_EQ(got.boxes[k].size, expected.boxes[k].size);
      EXPECT_TRUE(same_item(got.items[k], expected.items[k]));
    }
  }
  ASSERT_EQ(read.objects.size(), 1U);
  EXPECT_EQ(read.objects[0].name, "optim.param_groups.0.lr");
  EXPECT_TRUE(same_item(read.objects[0].item, written.objects[0].item));
}

/// Names, classes and keys that occur again are references.
TEST(DcpMetadata, grows_by_few_bytes_for_each_piece) {
  DcpMetadata metadata;
  auto& tensor = metadata.tensors.emplace_back();
  tensor = {.name = std::string(100, 'w'), .dtype = Dtype::f32, .shape = {1'000, 2}};
  auto const add_pieces = [&](std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      tensor.boxes.push_back({{static_cast<std::int64_t>(tensor.boxes.size()), 0}, {1, 2}});
      tensor.items.push_back({"__0_0.distcp", 1'000, 1'000});
    }
  };
  add_pieces(500);
  auto const half = write_dcp_metadata(metadata).size();
  add_pieces(500);
  EXPECT_LT(write_dcp_metadata(metadata).size() - half, 500U * 120U);
}

TEST(DcpMetadata, has_no_dtype_that_torch_does_not_have) {
  auto metadata = sample_metadata();
  metadata.tensors[0].dtype = Dtype::f4;
  EXPECT_THROW((void)write_dcp_metadata(metadata), UsageError);
}

TEST(DcpMetadata, that_is_truncated_is_refused) {
  auto const whole = bytes_of(write_dcp_metadata(sample_metadata()));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW((void)read_dcp_metadata({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, "test"),
                 FormatError);
}

}  // namespace
}  // namespace crossrank::codec
