#include <crossrank/safetensors.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/tensor/clone_on_write.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>

#include "tests/support/temporary_directory.hpp"

namespace crossrank {
namespace {

namespace fs = std::filesystem;

std::string contents(fs::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Tensor counting(Shape const& shape, Dtype dtype) {
  auto tensor = Tensor::empty(shape, dtype);
  auto bytes = tensor.mutable_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return tensor;
}

bool same(Tensor const& a, Tensor const& b) {
  auto const x = a.bytes();
  auto const y = b.bytes();
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::equal(x.begin(), x.end(), y.begin(), y.end());
}

std::vector<std::string> names_in(fs::path const& directory) {
  std::vector<std::string> names;
  for (auto const& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

TEST(Safetensors, round_trips_saved_tensors) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "model.safetensors";
  StateDict const weights{{"b", counting({3, 5}, Dtype::bf16)},
                          {"a", counting({2}, Dtype::f64)},
                          {"empty", counting({0, 4}, Dtype::f32)},
                          {"scalar", Tensor::scalar(2.5F)},
                          {"bytes", counting({7}, Dtype::f8_e4m3)}};

  save_safetensors(path, weights, {.metadata = {{"format", "pt"}, {"note", "\"quoted\""}}});

  auto const loaded = load_safetensors(path);
  ASSERT_EQ(loaded.size(), weights.size());
  for (auto const& [name, tensor] : weights) EXPECT_TRUE(same(loaded.at(name), tensor)) << name;
  SafetensorsFile const file(path);
  EXPECT_EQ(file.metadata().at(1).second, "\"quoted\"");
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(file.find("b")->shape, (Shape{3, 5}));
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("model.safetensors"));
}

TEST(Safetensors, writes_the_bytes_of_the_reference_implementation) {
  fs::path const source = fs::path(CROSSRANK_TEST_DATA) / "stories260k" / "model.safetensors";
  test::TemporaryDirectory const folder;

  save_safetensors(folder.path() / "copy.safetensors", load_safetensors(source));

  EXPECT_EQ(contents(folder.path() / "copy.safetensors") == contents(source), true);
}

TEST(Safetensors, maps_tensors_that_outlive_the_file_object) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "mapped.safetensors";
  StateDict const weights{{"large", Tensor::of(std::vector<std::int64_t>(20'000, 7), {20'000})},
                          {"small", Tensor::of<float>({1, 2}, {2})},
                          {"empty", Tensor::empty({0, 3}, Dtype::f32)}};
  save_safetensors(path, weights);
  StateDict mapped;
  {
    SafetensorsFile const file(path);
    for (auto const& entry : file.entries()) mapped.insert_or_assign(entry.name, file.map(entry.name));
    EXPECT_EQ(file.map("large").data(), mapped.at("large").data());
    EXPECT_THROW((void)file.map("absent"), UsageError);
  }
  for (auto const& [name, tensor] : weights) EXPECT_TRUE(same(mapped.at(name), tensor)) << name;
  EXPECT_THROW((void)mapped.at("large").mutable_bytes(), UsageError);
}

TEST(Safetensors, keeps_writes_to_a_private_copy_out_of_the_file) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "private.safetensors";
  save_safetensors(path, {{"large", Tensor::of(std::vector<std::int64_t>(20'000, 7), {20'000})},
                          {"small", Tensor::of<std::int64_t>({7, 7}, {2})}});
  for (auto const* name : {"large", "small"}) {
    SafetensorsFile const file(path);
    auto const original = file.map(name);
    auto mine = clone_on_write(original);
    EXPECT_TRUE(same(mine, original)) << name;
    mine.as_mutable<std::int64_t>().back() = 8;
    EXPECT_EQ(mine.as<std::int64_t>().back(), 8) << name;
    EXPECT_EQ(original.as<std::int64_t>().back(), 7) << name;
    auto const in_file = file.read(name);
    EXPECT_EQ(in_file.as<std::int64_t>().back(), 7) << name;
  }
  EXPECT_FALSE(clone_on_write({}).defined());
}

TEST(Safetensors, reads_the_same_slices_as_from_memory) {
  test::TemporaryDirectory const folder;
  auto const seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  auto const upto = [&](std::int64_t max) { return std::uniform_int_distribution<std::int64_t>(0, max)(random); };
  // One tensor is larger than a read block, so that a slice crosses blocks.
  StateDict const weights{{"small", counting({4, 6, 5}, Dtype::i16)}, {"large", counting({700, 1000}, Dtype::f32)}};
  auto const path = folder.path() / "w.safetensors";
  save_safetensors(path, weights);
  SafetensorsFile const file(path);

  for (int round = 0; round < 100; ++round) {
    for (auto const& [name, tensor] : weights) {
      auto const dim = upto(static_cast<std::int64_t>(tensor.shape().size()) - 1);
      auto const full = tensor.shape()[static_cast<std::size_t>(dim)];
      auto const begin = upto(full);
      auto const length = upto(full - begin);
      ASSERT_TRUE(same(file.read_slice(name, {dim}, begin, length), slice(tensor, {dim}, begin, length)))
          << name << " dim " << dim << " from " << begin << ", " << length << "; seed " << seed;
    }
  }
  EXPECT_TRUE(same(file.read_slice("small", {-1}, 1, 2), slice(weights.at("small"), {2}, 1, 2)));
}

TEST(Safetensors, refuses_slices_that_do_not_exist) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  save_safetensors(
      path,
      {{"w", counting({4, 6}, Dtype::u8)}, {"nibbles", counting({2, 4}, Dtype::f4)}, {"scalar", Tensor::scalar(1)}});
  SafetensorsFile const file(path);

  EXPECT_THROW((void)file.read_slice("x", {0}, 0, 1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {2}, 0, 1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {-3}, 0, 1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {0}, 4, 1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {0}, -1, 1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {0}, 1, -1), UsageError);
  EXPECT_THROW((void)file.read_slice("w", {0}, std::numeric_limits<std::int64_t>::max(), 1), UsageError);
  EXPECT_THROW((void)file.read_slice("nibbles", {1}, 1, 2), UsageError);
  EXPECT_EQ(file.read_slice("nibbles", {1}, 2, 2).nbytes(), 2U);
  EXPECT_THROW((void)file.read_slice("scalar", {0}, 0, 1), UsageError);
  EXPECT_THROW((void)file.read("x"), UsageError);
}

TEST(Safetensors, refuses_to_write_tensors_that_the_format_does_not_support) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  auto const one = Tensor::scalar(1);

  EXPECT_THROW(save_safetensors(path, {{"absent", Tensor{}}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{"__metadata__", one}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{"\xff", one}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{std::string("a\0b", 3), one}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{std::string(1025, 'n'), one}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{"w", one}}, {.metadata = {{"k", "\xff"}}}), UsageError);
  EXPECT_THROW(save_safetensors(path, {{"w", one}}, {.metadata = {{"k", "1"}, {"k", "2"}}}), UsageError);
  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(Safetensors, never_replaces_a_file) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  save_safetensors(path, {{"w", Tensor::scalar(1)}});
  auto const before = contents(path);

  EXPECT_THROW(save_safetensors(path, {{"w", Tensor::scalar(2)}}), IoError);

  EXPECT_EQ(contents(path), before);
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("w.safetensors"));
}

TEST(Safetensors, names_the_file_that_cannot_be_read) {
  test::TemporaryDirectory const folder;
  auto const broken = folder.path() / "broken.safetensors";
  std::ofstream(broken) << "this is not a header at all";

  try {
    (void)load_safetensors(broken);
    FAIL() << "it was read";
  } catch (FormatError const& e) {
    EXPECT_EQ(e.info().resource, broken.string());
    EXPECT_EQ(e.section(), "length");
  }
  try {
    (void)load_safetensors(folder.path() / "missing");
    FAIL() << "it was read";
  } catch (IoError const& e) {
    EXPECT_EQ(e.system_errno(), ENOENT);
  }
  EXPECT_THROW((void)load_safetensors(folder.path()), Error);
}

TEST(Safetensors, follows_the_links_of_model_caches) {
  test::TemporaryDirectory const folder;
  save_safetensors(folder.path() / "blob", {{"w", Tensor::scalar(1)}});
  fs::create_symlink("blob", folder.path() / "model.safetensors");

  EXPECT_EQ(load_safetensors(folder.path() / "model.safetensors").at("w").item<int>(), 1);
}

}  // namespace
}  // namespace crossrank
