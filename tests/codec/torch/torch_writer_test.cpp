#include "lib/codec/torch/torch_archive_writer.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/codec/torch/pickle/torch_dtype.hpp"
#include "lib/codec/torch/zip/zip_format.hpp"
#include "tests/codec/torch/torch_fixture.hpp"

namespace crossrank::codec {
namespace {

Bytes archive_of(StateDict const& weights, TorchRoot root = TorchRoot::state_dict, Json const& config = {}) {
  auto const outputs = torch_outputs(weights);
  TorchArchivePlan const plan(outputs, root, config);
  Bytes bytes(plan.file_bytes());
  MemorySink sink(bytes);
  write_torch_archive(plan, outputs, weights, sink);
  return bytes;
}

StateDict one_of_each() {
  StateDict weights;
  std::mt19937 random(7);
  for (std::size_t i = 0; i < dtype_count; ++i) {
    auto const dtype = static_cast<Dtype>(i);
    if (torch_dtype_of(dtype) == nullptr) continue;
    auto tensor = Tensor::empty({3, 4}, dtype);
    for (auto& b : tensor.mutable_bytes()) b = static_cast<std::byte>(random());
    weights.insert_or_assign(std::string(name_of(dtype)) + ".weight", tensor);
  }
  weights.insert_or_assign("scalar", Tensor::scalar(1.5F));
  weights.insert_or_assign("empty", Tensor::empty({0, 7}, Dtype::f32));
  weights.insert_or_assign("n\u00e4me/\u540d \"q\"", Tensor::scalar(std::int64_t{-1}));
  return weights;
}

TEST(TorchArchiveWriter, round_trips_its_contents) {
  auto const weights = one_of_each();
  auto const back = load_torch(archive_of(weights));
  ASSERT_EQ(back.size(), weights.size());
  for (auto const& [name, tensor] : weights) {
    auto const& other = back.at(name);
    EXPECT_EQ(to_string(other), to_string(tensor)) << name;
    EXPECT_TRUE(std::equal(other.bytes().begin(), other.bytes().end(), tensor.bytes().begin(), tensor.bytes().end()));
  }
}

TEST(TorchArchiveWriter, aligns_data_to_64_bytes_and_stores_tied_tensors_once) {
  auto weights = one_of_each();
  weights.insert_or_assign("tied", weights.at("F32.weight"));
  auto const bytes = archive_of(weights);
  auto const zip = ZipArchive::open(std::make_shared<BytesSource>(bytes));
  std::size_t data = 0;
  for (auto const& record : zip.records()) {
    EXPECT_EQ(record.begin % 64, 0U) << record.name;
    EXPECT_TRUE(zip.crc_holds(record));
    data += record.name.starts_with("archive/data/") ? 1U : 0U;
  }
  EXPECT_EQ(data, weights.size() - 1);
  auto const back = load_torch(bytes);
  EXPECT_EQ(back.at("tied").data(), back.at("F32.weight").data());
}

TEST(TorchArchiveWriter, keeps_every_value_of_a_config) {
  Json config = Json::parse(R"({"a": [1, -1, 300, 70000, -70000, 5000000000, -5000000000, 18446744073709551615],
                                "b": {"c": null, "d": [true, false], "e": "\u00fc", "f": {}, "g": [], "h": 0.1}})");
  config["inf"] = -INFINITY;
  config["bytes"] = Json::binary({0, 127, 128, 255});
  auto const archive = open_torch(archive_of({}, TorchRoot::modelopt, config));
  EXPECT_EQ(plain_value(*archive, *archive->root().find("config")), config);
}

TEST(TorchArchiveWriter, refuses_tensors_that_torch_does_not_support) {
  StateDict weights;
  weights.insert_or_assign("w", Tensor::zeros({4}, Dtype::f6_e2m3));
  EXPECT_THROW((void)archive_of(weights), UsageError);
  StateDict absent;
  absent.insert_or_assign("w", Tensor{});
  EXPECT_THROW((void)archive_of(absent), UsageError);
}

TEST(ZipWriter, accepts_its_bytes_in_any_pieces_but_no_other_number) {
  std::vector<ZipEntry> const entries{{"a/x", 3}, {"a/empty", 0}, {"a/y", 200}, {"a/last", 0}};
  Bytes data(203);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  auto const written = [&](std::size_t piece) {
    Bytes file(zip_file_bytes(entries));
    MemorySink sink(file);
    ZipWriter writer(entries, sink);
    for (std::size_t at = 0; at < data.size(); at += piece)
      writer.write(std::span(data).subspan(at, std::min(piece, data.size() - at)));
    writer.finish();
    return file;
  };
  auto const whole = written(1000);
  for (std::size_t const piece : {1U, 2U, 7U, 64U, 202U}) EXPECT_EQ(written(piece), whole);
  auto const zip = ZipArchive::open(std::make_shared<BytesSource>(whole));
  EXPECT_EQ(zip.records().size(), 4U);
  EXPECT_EQ(zip.read_small(*zip.find("a/x"), 3), Bytes(data.begin(), data.begin() + 3));

  Bytes file(zip_file_bytes(entries));
  MemorySink sink(file);
  ZipWriter writer(entries, sink);
  writer.write(std::span(data).first(100));
  EXPECT_THROW(writer.finish(), UsageError);
  writer.write(std::span(data).subspan(100));
  EXPECT_THROW(writer.write(std::span(data).first(1)), UsageError);
}

/// Keeps only the bytes near the borders of records, to test archives of many gigabytes.
class SparseSink final : public ByteSink, public ByteSource {
 public:
  explicit SparseSink(std::uint64_t size) : size_(size) {}
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  void write_at(std::uint64_t offset, std::span<std::byte const> from) override {
    EXPECT_LE(offset + from.size(), size_);
    if (std::all_of(from.begin(), from.end(), [](std::byte b) { return b == std::byte{0}; })) return;
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i] != std::byte{0}) bytes_[offset + i] = from[i];
    }
  }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    std::fill(to.begin(), to.end(), std::byte{0});
    for (auto at = bytes_.lower_bound(offset); at != bytes_.end() && at->first < offset + to.size(); ++at)
      to[at->first - offset] = at->second;
  }

 private:
  std::string name_ = "sparse";
  std::uint64_t size_;
  std::map<std::uint64_t, std::byte> bytes_{};
};

TEST(ZipWriter, uses_zip64_beyond_4_gib) {
  constexpr std::uint64_t wide = (std::uint64_t{1} << 32) + 5;
  std::vector<ZipEntry> const entries{{"a/data.pkl", 2}, {"a/data/0", wide}, {"a/data/1", 4}};
  SparseSink sink(zip_file_bytes(entries));
  ZipWriter writer(entries, sink);
  writer.write(to_bytes("hi"));
  Bytes const zeros(64 << 20);
  for (std::uint64_t left = wide; left > 0;) {
    auto const part = std::min<std::uint64_t>(left, zeros.size());
    writer.write(std::span(zeros).first(part));
    left -= part;
  }
  writer.write(to_bytes("last"));
  writer.finish();
  auto const zip = ZipArchive::open(std::shared_ptr<ByteSource const>(&sink, [](auto*) {}));
  ASSERT_EQ(zip.records().size(), 3U);
  EXPECT_EQ(zip.find("a/data/0")->size, wide);
  EXPECT_GT(zip.find("a/data/1")->begin, wide);
  EXPECT_EQ(zip.find("a/data/1")->begin % 64, 0U);
  EXPECT_EQ(zip.read_small(*zip.find("a/data/1"), 4), to_bytes("last"));
}

}  // namespace
}  // namespace crossrank::codec
