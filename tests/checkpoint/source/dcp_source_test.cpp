#include "workspace/checkpoint/source/torch/dcp_source.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/sha256.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/source/chunked_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path golden() { return fs::path(CROSSRANK_TEST_DATA) / "dcp"; }

class DcpSource : public testing::TestWithParam<char const*> {
 protected:
  void SetUp() override {
    fs::create_directory(copy());  // copied because the original may be read-only
    fs::copy(golden() / GetParam(), copy());
    for (auto const& file : fs::directory_iterator(copy())) fs::permissions(file, fs::perms::owner_all);
  }
  [[nodiscard]] fs::path copy() const { return root_.path() / "copy"; }
  [[nodiscard]] std::string refusal() const {
    try {
      auto const source = open_dcp(copy());
      std::vector<std::byte> bytes;
      for (std::size_t i = 0; i < source->tensors().size(); ++i) {
        bytes.resize(dense_bytes(source->tensors()[i].shape, source->tensors()[i].dtype));
        source->read(i, 0, bytes);
      }
    } catch (FormatError const& e) {
      return e.what();
    } catch (IoError const& e) {
      return e.what();
    }
    return "accepted";
  }
  /// Returns the first data file.
  [[nodiscard]] fs::path victim() const {
    std::vector<fs::path> files;
    for (auto const& file : fs::directory_iterator(copy())) {
      if (!file.path().filename().string().starts_with('.')) files.push_back(file.path());
    }
    return *std::min_element(files.begin(), files.end());
  }
  test::TemporaryDirectory root_{};
};

TEST_P(DcpSource, reads_the_whole_model_bit_for_bit) {
  auto const source = open_dcp(copy());
  std::ifstream truth(golden() / "truth.json");
  auto const wanted = Json::parse(truth);
  ASSERT_EQ(source->tensors().size(), wanted.size());
  std::size_t total = 0;
  for (std::size_t i = 0; i < source->tensors().size(); ++i) {
    auto const& about = source->tensors()[i];
    auto const& tensor = wanted.at(about.name);
    EXPECT_EQ(name_of(about.dtype), tensor.at("dtype").get<std::string>()) << about.name;
    ASSERT_EQ(about.shape, Shape(tensor.at("shape").get<std::vector<std::int64_t>>())) << about.name;
    std::vector<std::byte> bytes(dense_bytes(about.shape, about.dtype));
    total += bytes.size();
    source->read(i, 0, bytes);
    EXPECT_EQ(test::sha256(bytes), tensor.at("sha256").get<std::string>()) << about.name;
    for (std::size_t begin = 0; begin < bytes.size(); begin += 1 + bytes.size() / 7) {
      std::vector<std::byte> part(std::min(bytes.size() - begin, 3 + bytes.size() / 5));
      source->read(i, begin, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + static_cast<std::ptrdiff_t>(begin)))
          << about.name;
    }
  }
  EXPECT_GT(source->bytes_on_disk(), total);
  EXPECT_THROW(source->read(0, 0, std::span<std::byte>(static_cast<std::byte*>(nullptr), std::size_t{1} << 40)),
               UsageError);
}

TEST_P(DcpSource, reports_a_missing_or_truncated_file) {
  auto const size = fs::file_size(victim());
  fs::resize_file(victim(), size - 1);
  EXPECT_THAT(refusal(), HasSubstr(victim().filename().string()));
  fs::remove(victim());
  EXPECT_NE(refusal(), "accepted");
}

INSTANTIATE_TEST_SUITE_P(Flavours, DcpSource, testing::Values("dcp_hf", "dcp_torch"),
                         [](auto const& test) { return std::string(test.param); });

class DcpTorch : public DcpSource {};

TEST_P(DcpTorch, reports_a_crc_mismatch) {
  std::fstream file(victim(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(2048));
  file.put('\x5a').put('\xa5');
  file.close();
  EXPECT_NE(refusal(), "accepted");
}

TEST_P(DcpTorch, names_a_missing_file) {
  auto const file = victim();
  fs::remove(file);
  EXPECT_THAT(refusal(), HasSubstr("missing: " + file.filename().string()));
}

TEST_P(DcpTorch, reports_an_unfinished_save_without_metadata) {
  fs::remove(copy() / ".metadata");
  EXPECT_EQ(find_dcp(copy()), DcpFlavour::none);
  EXPECT_THAT(refusal(), HasSubstr("not finished"));
}

INSTANTIATE_TEST_SUITE_P(Flavours, DcpTorch, testing::Values("dcp_torch"),
                         [](auto const& test) { return std::string(test.param); });

TEST(ChunkTiling, finds_holes_overlaps_and_chunks_outside) {
  using codec::ChunkBox;
  using codec::find_coverage_error;
  std::vector<std::int64_t> const lengths{4, 6};
  auto const error = [&](std::vector<ChunkBox> const& boxes) {
    return find_coverage_error(lengths, boxes).value_or("none");
  };
  EXPECT_EQ(error({{{0, 0}, {4, 6}}}), "none");
  EXPECT_EQ(error({{{0, 0}, {1, 6}}, {{1, 0}, {3, 2}}, {{1, 2}, {3, 4}}, {{4, 0}, {0, 6}}}), "none");
  EXPECT_THAT(error({{{0, 0}, {4, 5}}}), HasSubstr("20 of 24"));
  EXPECT_THAT(error({{{0, 0}, {4, 6}}, {{0, 0}, {1, 1}}}), HasSubstr("more elements"));
  EXPECT_THAT(error({{{0, 0}, {2, 6}}, {{1, 0}, {2, 6}}}), HasSubstr("overlap"));
  EXPECT_THAT(error({{{1, 0}, {4, 6}}}), HasSubstr("outside"));
  EXPECT_THAT(error({{{0}, {24}}}), HasSubstr("outside"));
  EXPECT_THAT(error({{{INT64_MAX, 0}, {INT64_MAX, 6}}}), HasSubstr("outside"));
  EXPECT_FALSE(find_coverage_error({}, std::vector<ChunkBox>{{{}, {}}}));
  EXPECT_TRUE(find_coverage_error({}, std::vector<ChunkBox>{}));
  EXPECT_FALSE(find_coverage_error(std::vector<std::int64_t>{0, 5}, std::vector<ChunkBox>{}));
}

/// All pieces have the same rows, so that a comparison of each with each would take hours.
TEST(ChunkTiling, takes_a_million_chunks_side_by_side) {
  constexpr std::int64_t count = 1'000'000;
  std::vector<std::int64_t> const lengths{3, 2 * count};
  std::vector<codec::ChunkBox> boxes;
  for (std::int64_t i = 0; i < count; ++i) boxes.push_back({{0, 2 * i}, {3, 2}});
  EXPECT_EQ(codec::find_coverage_error(lengths, boxes), std::nullopt);
  boxes.back().begin[1] -= 1;
  EXPECT_THAT(codec::find_coverage_error(lengths, boxes).value_or("none"), HasSubstr("overlap"));
}

/// A piece with the bytes of a test.
class Bytes final : public ChunkData, public codec::ByteSource, public std::enable_shared_from_this<Bytes> {
 public:
  explicit Bytes(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  [[nodiscard]] std::shared_ptr<codec::ByteSource const> open() const override { return shared_from_this(); }
  [[nodiscard]] std::string const& file() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept override { return bytes_.size(); }
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    ASSERT_LE(offset + to.size(), bytes_.size());
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
  }

 private:
  std::string name_ = "bytes";
  std::vector<std::byte> bytes_;
};

/// Splits a box in two, again and again, at random places.
void split_box(codec::ChunkBox const& box, std::mt19937& random, std::vector<codec::ChunkBox>& out) {
  auto const dim = box.size.empty() ? 0 : random() % box.size.size();
  if (box.size.empty() || box.size[dim] < 2 || random() % 4 == 0) {
    out.push_back(box);
    return;
  }
  auto const at = 1 + static_cast<std::int64_t>(random()) % (box.size[dim] - 1);
  auto first = box;
  auto second = box;
  first.size[dim] = at;
  second.begin[dim] += at;
  second.size[dim] -= at;
  split_box(first, random, out);
  split_box(second, random, out);
}

TEST(ChunkedSource, reads_any_range_from_any_chunks) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> lengths;
    for (auto dims = random() % 4; dims > 0; --dims) lengths.push_back(1 + static_cast<std::int64_t>(random() % 7));
    auto const whole = codec::ChunkBox{std::vector<std::int64_t>(lengths.size(), 0), lengths};
    ChunkedTensor tensor{.tensor = {"t", Dtype::i32, Shape(lengths)}};
    split_box(whole, random, tensor.boxes);
    ASSERT_FALSE(codec::find_coverage_error(lengths, tensor.boxes));
    for (auto moved : tensor.boxes) {  // in place of any other one, it leaves a hole
      if (moved.size == tensor.boxes.front().size && moved.begin != tensor.boxes.front().begin) {
        auto boxes = tensor.boxes;
        boxes.front() = moved;
        ASSERT_THAT(codec::find_coverage_error(lengths, boxes).value_or("none"), HasSubstr("overlap"));
      }
    }
    std::vector<std::int32_t> values(as_size(Shape(lengths).numel()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i * 7919);
    for (auto const& box : tensor.boxes) {
      std::vector<std::byte> bytes;
      for (std::int64_t n = 0; n < static_cast<std::int64_t>(values.size()); ++n) {
        bool inside = true;
        auto rest = n;
        for (auto dim = lengths.size(); dim-- > 0; rest /= lengths[dim]) {
          auto const i = rest % lengths[dim];
          inside = inside && i >= box.begin[dim] && i < box.begin[dim] + box.size[dim];
        }
        auto const one = std::as_bytes(std::span(values)).subspan(as_size(n) * 4, 4);
        if (inside) bytes.insert(bytes.end(), one.begin(), one.end());
      }
      tensor.data.push_back(std::make_shared<Bytes>(std::move(bytes)));
    }
    ChunkedSource const source("test", {std::move(tensor)}, Json::object(), 0);
    auto const all = std::as_bytes(std::span(values));
    auto const begin = random() % all.size();
    std::vector<std::byte> part(random() % (all.size() - begin + 1));
    source.read(0, begin, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)))
        << "round " << round;
  }
}

TEST(ChunkedSource, reads_packed_elements_and_rejects_chunks_that_split_a_byte) {
  auto const piece = [](std::initializer_list<int> values) {
    std::vector<std::byte> bytes;
    for (int const v : values) bytes.push_back(static_cast<std::byte>(v));
    return std::make_shared<Bytes>(std::move(bytes));
  };
  ChunkedTensor tensor{.tensor = {"t", Dtype::f4, {2, 4}},
                       .boxes = {{{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}},
                       .data = {piece({1, 3}), piece({2, 4})}};
  ChunkedSource const source("test", {tensor}, Json::object(), 0);
  std::vector<std::byte> bytes(4);
  source.read(0, 0, bytes);
  EXPECT_THAT(bytes, testing::ElementsAre(std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}));
  tensor.boxes = {{{0, 0}, {2, 1}}, {{0, 1}, {2, 3}}};
  EXPECT_THROW(ChunkedSource("test", {tensor}, Json::object(), 0), FormatError);
}

}  // namespace
}  // namespace crossrank::checkpoint
