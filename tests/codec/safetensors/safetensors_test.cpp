#include <crossrank/safetensors.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/tensor/clone_on_write.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "tests/codec/safetensors/image_fixture.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/faulty_system.hpp"
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

TEST(Safetensors, escapes_control_characters_like_the_reference_implementation) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  std::string const controls = "\b\t\n\v\f\r\x1b\x7f";

  save_safetensors(path, {{controls, Tensor::scalar(1)}}, {.metadata = {{"note", controls}}});

  std::string const escaped = R"("\b\t\n\u000b\f\r\u001b)"
                              "\x7f\"";
  auto const header = contents(path).substr(8);
  EXPECT_TRUE(header.starts_with(R"({"__metadata__":{"note":)" + escaped + "}," + escaped + ":{")) << header;
  EXPECT_EQ(SafetensorsFile(path).metadata().at(0).second, controls);
  EXPECT_NE(SafetensorsFile(path).find(controls), nullptr);
}

TEST(Safetensors, reads_a_header_as_large_as_it_writes) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  std::string const note(std::size_t{33} << 20, 'x');

  save_safetensors(path, {{"w", Tensor::scalar(7)}}, {.metadata = {{"note", note}}});

  SafetensorsFile const file(path);
  EXPECT_EQ(file.read("w").item<int>(), 7);
  EXPECT_EQ(file.metadata().at(0).second.size(), note.size());
}

TEST(Safetensors, refuses_to_write_more_tensors_than_it_reads) {
  test::TemporaryDirectory const folder;
  StateDict weights;
  auto const one = Tensor::scalar(std::uint8_t{1});
  weights.reserve(1'000'001);
  for (int i = 0; i <= 1'000'000; ++i) weights.insert_or_assign(std::to_string(i), one);

  EXPECT_THROW(save_safetensors(folder.path() / "w.safetensors", weights), UsageError);

  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(Safetensors, refuses_the_metadata_and_the_name_of_a_state_image) {
  test::TemporaryDirectory const folder;
  auto const image = folder.path() / "image.safetensors";
  auto const bytes = codec::image_of({}, {{"w", Tensor::scalar(1)}});
  std::ofstream(image, std::ios::binary)
      .write(reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  auto const weights = load_safetensors(image);

  auto const error = test::error_of<UsageError>([&] {
    save_safetensors(folder.path() / "copy.safetensors", weights, {.metadata = SafetensorsFile(image).metadata()});
  });
  EXPECT_NE(error.hint.find("crossrank."), std::string::npos) << error.hint;
  EXPECT_THROW(save_safetensors(folder.path() / "rank_0_state.0123456789abcdef-00000001.safetensors", weights),
               UsageError);

  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("image.safetensors"));
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

TEST(Safetensors, replaces_a_file_only_when_forced_and_keeps_the_views_of_the_old_one) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "w.safetensors";
  save_safetensors(path, {{"w", Tensor::of(std::vector<std::int64_t>(20'000, 7), {20'000})}});
  auto const old = SafetensorsFile(path).map("w");

  auto const refused = test::error_of<IoError>([&] { save_safetensors(path, {{"w", Tensor::scalar(8)}}); });
  EXPECT_EQ(refused.hint, "set `force` to replace the file");
  save_safetensors(path, {{"w", Tensor::scalar(8)}}, {.force = true});

  EXPECT_EQ(SafetensorsFile(path).read("w").item<int>(), 8);
  EXPECT_TRUE(same(old, Tensor::of(std::vector<std::int64_t>(20'000, 7), {20'000})));
  EXPECT_THAT(names_in(directory.path()), testing::ElementsAre("w.safetensors"));
}

TEST(Safetensors, never_replaces_a_directory) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "w.safetensors";
  fs::create_directory(path);
  for (bool const force : {false, true}) {
    auto const refused = test::error_of<IoError>([&] {
      save_safetensors(path, {{"w", Tensor::scalar(8)}}, {.force = force});
    });
    EXPECT_EQ(refused.system_errno, EISDIR);
    EXPECT_EQ(refused.hint, "give the path of a file");
  }
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

/// A process may have only some 65,000 mappings, and large models have more tensors.
TEST(Safetensors, gives_all_private_copies_of_a_file_one_mapping) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "many.safetensors";
  StateDict weights;
  for (int i = 0; i < 20; ++i) weights.insert("w" + std::to_string(i), counting({100'001}, Dtype::u8));
  save_safetensors(path, weights);
  auto const mappings = [&] {
    std::ifstream maps("/proc/self/maps");
    int count = 0;
    for (std::string line; std::getline(maps, line);) count += line.ends_with(path.string()) ? 1 : 0;
    return count;
  };
  SafetensorsFile const file(path);
  std::vector<Tensor> mine;
  for (auto const& [name, tensor] : weights) mine.push_back(clone_on_write(file.map(name)));
  EXPECT_EQ(mappings(), 2);  // and that of the file itself

  for (auto& tensor : mine) std::ranges::fill(tensor.mutable_bytes(), std::byte{1});
  auto again = clone_on_write(file.map("w7"));
  EXPECT_TRUE(same(again, weights.at("w7")));
  std::ranges::fill(again.mutable_bytes(), std::byte{2});
  mine.erase(mine.begin() + 3);
  EXPECT_TRUE(same(clone_on_write(file.map("w3")), weights.at("w3")));
  for (auto const& tensor : mine)
    EXPECT_TRUE(std::ranges::all_of(tensor.bytes(), [](std::byte byte) { return byte == std::byte{1}; }));
  mine.clear();
  again = Tensor();
  EXPECT_EQ(mappings(), 1);
}

TEST(Safetensors, copies_what_is_not_aligned_in_the_file_for_a_private_copy) {
  test::TemporaryDirectory const directory;
  auto const path = directory.path() / "odd.safetensors";
  std::string header = R"({"w":{"dtype":"F32","shape":[100000],"data_offsets":[0,400000]}})";
  header.resize(header.size() | 1, ' ');  // 8 bytes of length before it: the data begins at an odd place
  std::ofstream out(path, std::ios::binary);
  std::uint64_t const length = header.size();
  out.write(reinterpret_cast<char const*>(&length), sizeof length);
  out << header << std::string(400'000, '\0');
  out.close();
  auto mine = clone_on_write(SafetensorsFile(path).map("w"));
  mine.as_mutable<float>().back() = 8;
  EXPECT_EQ(mine.as<float>().back(), 8);
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
      auto const full = tensor.shape()[as_size(dim)];
      auto const begin = upto(full);
      auto const length = upto(full - begin);
      ASSERT_TRUE(same(file.read_slice(name, {dim}, begin, length), slice(tensor, {dim}, begin, length)))
          << name << " dim " << dim << " from " << begin << ", " << length << "; seed " << seed;
    }
  }
  EXPECT_TRUE(same(file.read_slice("small", {-1}, 1, 2), slice(weights.at("small"), {2}, 1, 2)));
}

/// Counts the bytes that are read at positions.
struct ReadCounter final : platform::System {
  ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) override {
    read += bytes;
    return System::pread(fd, to, bytes, at);
  }
  std::size_t read = 0;
};

TEST(Safetensors, reads_only_the_slice_from_rows_larger_than_a_block) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  StateDict const weights{{"w", counting({3, 5, 200'000}, Dtype::i16)}};
  save_safetensors(path, weights);
  SafetensorsFile const file(path);

  ReadCounter counter;
  platform::ScopedSystem const scope(counter);
  auto const sliced = file.read_slice("w", {1}, 2, 2);

  EXPECT_TRUE(same(sliced, slice(weights.at("w"), {1}, 2, 2)));
  EXPECT_EQ(counter.read, sliced.nbytes());
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

  auto const undefined = test::error_of<UsageError>([&] { save_safetensors(path, {{"absent", Tensor{}}}); });
  EXPECT_EQ(undefined.message, "\"absent\": tensor is undefined");
  EXPECT_EQ(undefined.resource, path.string());
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

TEST(Safetensors, refuses_an_existing_name_before_it_writes) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  std::ofstream(path) << "old";
  test::FaultySystem os;
  platform::ScopedSystem const scope(os);

  auto const error = test::thrown<IoError>([&] { save_safetensors(path, {{"w", counting({4096}, Dtype::f32)}}); });

  EXPECT_EQ(error.system_errno(), EEXIST);
  EXPECT_EQ(error.info().resource, path.string());
  EXPECT_NE(error.info().message.find(" 0 bytes were written"), std::string::npos) << error.info().message;
  EXPECT_FALSE(error.info().hint.empty());
  EXPECT_EQ(os.uses(test::Call::pwrite) + os.uses(test::Call::fallocate) + os.uses(test::Call::linkat), 0);
}

TEST(Safetensors, refuses_a_name_that_appears_while_it_writes) {
  test::TemporaryDirectory const folder;
  auto const path = folder.path() / "w.safetensors";
  test::FaultySystem os;
  os.on_name = [&](test::Call call, std::string const&) {
    if (call == test::Call::linkat) std::ofstream(path) << "new";
  };
  platform::ScopedSystem const scope(os);

  auto const error = test::thrown<IoError>([&] { save_safetensors(path, {{"w", Tensor::scalar(2)}}); });

  EXPECT_EQ(error.system_errno(), EEXIST);
  EXPECT_EQ(contents(path), "new");
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("w.safetensors"));
}

TEST(Safetensors, refuses_paths_that_name_no_file) {
  test::TemporaryDirectory const folder;
  StateDict const weights{{"w", Tensor::scalar(1)}};

  for (auto const& path : {fs::path(), fs::path("/"), folder.path() / "", folder.path() / std::string("a\0b", 3)})
    EXPECT_THROW(save_safetensors(path, weights), UsageError) << path;

  EXPECT_THAT(names_in(folder.path()), testing::IsEmpty());
}

TEST(Safetensors, saves_into_a_folder_that_others_can_write_to) {
  test::TemporaryDirectory const folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);

  EXPECT_NO_THROW(save_safetensors(folder.path() / "w.safetensors", {{"w", Tensor::scalar(1)}}));
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
