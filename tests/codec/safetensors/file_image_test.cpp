#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lib/platform/files/fd.hpp"
#include "lib/platform/system.hpp"
#include "tests/codec/safetensors/image_fixture.hpp"

namespace crossrank::codec {
namespace {

namespace fs = std::filesystem;

/// A temporary folder with one open file.
class FileImage : public testing::Test {
 protected:
  FileImage() {
    std::string pattern = (fs::temp_directory_path() / "crossrank-codec-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = pattern;
    path_ = (folder_ / "image.safetensors").string();
    file_ = platform::Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  ~FileImage() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  void write(StateDict const& weights, Json const& config = {}) const {
    ImagePlan plan(config, weights, {});
    FileSink sink(path_, file_.get());
    write_image(plan, sink);
  }
  [[nodiscard]] StateImage open() const { return StateImage::open(std::make_shared<FileSource>(path_, file_.get())); }

  fs::path folder_;
  std::string path_;
  platform::Fd file_;
};

StateDict mixed_sizes() {
  StateDict weights;
  for (int i = 0; i < 40; ++i) weights.insert_or_assign("small." + std::to_string(i), Tensor::scalar(i));
  auto large = Tensor::zeros({3, 1'000'003}, Dtype::u8);
  for (std::size_t i = 0; auto& byte : large.mutable_bytes()) byte = static_cast<std::byte>(i++ * 7);
  weights.insert_or_assign("large", large);
  return weights;
}

TEST_F(FileImage, round_trips_large_and_small_tensors) {
  write(mixed_sizes(), Json{{"k", "v"}});
  auto const state = open().read_all();
  EXPECT_EQ(state.config.at("k"), "v");
  for (int i = 0; i < 40; ++i) EXPECT_EQ(state.weights.at("small." + std::to_string(i)).item<int>(), i);
  auto const read = state.weights.at("large").bytes();
  auto const expected = mixed_sizes();
  auto const wanted = expected.at("large").bytes();
  EXPECT_TRUE(std::equal(read.begin(), read.end(), wanted.begin(), wanted.end()));
  EXPECT_NO_THROW(open().verify("large"));
}

TEST_F(FileImage, finds_damage_after_the_first_chunk) {
  write(mixed_sizes());
  char byte = 0;
  auto const at = static_cast<off_t>(fs::file_size(path_)) - 10;
  ASSERT_EQ(::pread(file_.get(), &byte, 1, at), 1);
  byte = static_cast<char>(byte ^ 4);
  ASSERT_EQ(::pwrite(file_.get(), &byte, 1, at), 1);
  EXPECT_THROW((void)open().read_all(), FormatError);
  EXPECT_THROW(open().verify("large"), FormatError);
  EXPECT_NO_THROW((void)open().read("small.7"));
}

TEST_F(FileImage, refuses_a_directory) {
  platform::Fd const folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_THROW(FileSource("folder", folder.get()), FormatError);
}

TEST_F(FileImage, reports_that_the_file_shrank_while_it_was_open) {
  write(mixed_sizes());
  auto const image = open();
  fs::resize_file(path_, fs::file_size(path_) - 100);
  EXPECT_THROW((void)image.read_all(), FormatError);
}

/// Transfers few bytes per call, interrupts calls, and can fail at the end.
class FlakySystem final : public platform::System {
 public:
  ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) override {
    if (++calls_ % 3 == 0) return errno = EINTR, -1;
    if (fail_with != 0) return errno = fail_with, -1;
    return System::pread(fd, to, std::min<std::size_t>(bytes, 100'001), at);
  }
  ssize_t pwrite(int fd, void const* from, std::size_t bytes, off_t at) override {
    if (++calls_ % 3 == 0) return errno = EINTR, -1;
    if (fail_with != 0) return errno = fail_with, -1;
    return System::pwrite(fd, from, std::min<std::size_t>(bytes, 100'001), at);
  }
  int fail_with = 0;

 private:
  int calls_ = 0;
};

TEST_F(FileImage, survives_short_transfers_and_interruptions) {
  FlakySystem flaky;
  platform::ScopedSystem const scope(flaky);
  write(mixed_sizes());
  EXPECT_EQ(open().read_all().weights.size(), 41U);
}

TEST_F(FileImage, reports_the_system_call_that_failed) {
  FlakySystem flaky;
  platform::ScopedSystem const scope(flaky);
  write(mixed_sizes());
  auto const image = open();
  flaky.fail_with = EIO;
  try {
    (void)image.read_all();
    FAIL() << "read";
  } catch (IoError const& e) {
    EXPECT_EQ(e.system_errno(), EIO);
    EXPECT_EQ(e.info().resource, path_);
  }
  flaky.fail_with = ENOSPC;
  EXPECT_THROW(write(mixed_sizes()), IoError);
}

/// Returns a Python interpreter with the package safetensors, or an empty text.
std::string python_with_safetensors() {
  for (std::string candidate :
       {std::getenv("CROSSRANK_TEST_PYTHON") ? std::getenv("CROSSRANK_TEST_PYTHON") : "", "python3"}) {
    if (!candidate.empty() && std::system(("'" + candidate + "' -c 'import safetensors' 2>/dev/null").c_str()) == 0)
      return candidate;
  }
  return {};
}

TEST_F(FileImage, opens_in_the_python_package) {
  auto const python = python_with_safetensors();
  if (python.empty()) GTEST_SKIP() << "neither $CROSSRANK_TEST_PYTHON nor python3 has the package safetensors";
  std::vector<std::int32_t> const values{1, -2, 3};
  write({{"caf\u00e9 \"x\"/\n", Tensor::of<std::int32_t>(values, {3, 1})},
         {"gone", Tensor{}},
         {"none", Tensor::zeros({0, 2}, Dtype::bf16)},
         {"f4", Tensor::zeros({2, 2}, Dtype::f4)}},
        Json{{"k", -1.5}});
  auto const script = (folder_ / "check.py").string();
  std::ofstream(script) << R"(import json, sys
from safetensors import deserialize, safe_open
entries = dict(deserialize(open(sys.argv[1], "rb").read()))
assert sorted(entries) == ["caf\u00e9 \"x\"/\n", "f4", "none"], sorted(entries)
first = entries["caf\u00e9 \"x\"/\n"]
assert first["dtype"] == "I32" and first["shape"] == [3, 1], first
assert bytes(first["data"]) == b"\1\0\0\0\xfe\xff\xff\xff\3\0\0\0"
assert entries["none"]["shape"] == [0, 2] and entries["f4"]["dtype"] == "F4"
head = open(sys.argv[1], "rb").read()
text = head[8:8 + int.from_bytes(head[:8], "little")]
metadata = json.loads(text)["__metadata__"]
assert metadata["format"] == "pt" and json.loads(metadata["crossrank.config"]) == {"k": -1.5}
)";
  EXPECT_EQ(std::system(("'" + python + "' '" + script + "' '" + path_ + "'").c_str()), 0);
}

}  // namespace
}  // namespace crossrank::codec
