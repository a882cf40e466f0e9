// A long file on a block device is written past the page cache; all other files are written through it.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/sysmacros.h>

#include <gtest/gtest.h>

#include "lib/platform/files/direct_io.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/system.hpp"
#include "tests/support/faulty_system.hpp"
#include "tests/support/temporary_directory.hpp"
#include "workspace/checkpoint/write/temporary_file.hpp"

namespace crossrank {
namespace {

using checkpoint::Caching;
using checkpoint::TemporaryFile;
using platform::Directory;

constexpr std::size_t slice_bytes = std::size_t{4} << 20;
constexpr std::size_t long_file = (std::size_t{16} << 20) + 123;

bool is_direct(int fd) { return (::fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

/// Reports a disk as the device of every file, counts transfers past the page cache, and rejects them on request.
class Watch final : public test::FaultySystem {
 public:
  Watch() {
    on_fstat = [](struct stat& status) { status.st_dev = makedev(8, 1); };
  }
  int openat(int directory, char const* path, int flags, mode_t mode) override {
    if (refuse_open && (flags & O_DIRECT) != 0) {
      errno = EINVAL;
      return -1;
    }
    return FaultySystem::openat(directory, path, flags, mode);
  }
  ssize_t pwrite(int fd, void const* from, std::size_t bytes, off_t at) override {
    return counted(fd, written) ? FaultySystem::pwrite(fd, from, bytes, at) : -1;
  }
  ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) override {
    return counted(fd, read) ? FaultySystem::pread(fd, to, bytes, at) : -1;
  }

  bool refuse_open = false;
  bool refuse_transfers = false;
  int written = 0;
  int read = 0;

 private:
  bool counted(int fd, int& count) {
    if (!is_direct(fd)) return true;
    ++count;
    errno = EINVAL;
    return !refuse_transfers;
  }
};

class TemporaryFiles : public testing::Test {
 protected:
  /// Writes a file slice by slice and reads it back, through TemporaryFile and through a stream.
  void round_trip(std::size_t bytes, Caching caching) {
    platform::ScopedSystem const scope(os_);
    auto buffer = platform::make_direct_buffer(slice_bytes);
    {
      auto const directory = Directory::open(folder_.path().string(), "test");
      TemporaryFile file(directory, "data", bytes, caching);
      each_slice(bytes, [&](std::size_t at, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) buffer[i] = value(at + i);
        file.write_at(at, {buffer.get(), size});
      });
      file.sync();
      each_slice(bytes, [&](std::size_t at, std::size_t size) {
        file.read_at(at, {buffer.get(), size});
        expect_values({buffer.get(), size}, at);
      });
      std::vector<std::byte> odd(1000);
      file.read_at(77, odd);
      expect_values(odd, 77);
      file.close();
    }
    std::ifstream stream(folder_.path() / "data", std::ios::binary);
    std::string const whole{std::istreambuf_iterator<char>(stream), {}};
    ASSERT_EQ(whole.size(), bytes);
    expect_values(std::as_bytes(std::span(whole)), 0);
  }

  static std::byte value(std::size_t at) { return static_cast<std::byte>(at * 31 + (at >> 12)); }
  static void expect_values(std::span<std::byte const> bytes, std::size_t from) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != value(from + i)) FAIL() << "byte " << from + i;
    }
  }
  template <class Body>
  static void each_slice(std::size_t bytes, Body const& body) {
    for (std::size_t at = 0; at < bytes; at += slice_bytes) body(at, std::min(slice_bytes, bytes - at));
  }
  /// Returns whether the file system of the test supports direct I/O, whatever `Watch` reports.
  bool direct_here() const {
    auto const probe = (folder_.path() / "probe").string();
    int const fd = ::open(probe.c_str(), O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  }

  test::TemporaryDirectory folder_{};
  Watch os_{};
};

TEST_F(TemporaryFiles, writes_a_long_file_past_the_page_cache_except_its_unaligned_end) {
  if (!direct_here()) GTEST_SKIP() << "the folder for temporary files does not support O_DIRECT";
  round_trip(long_file, Caching::none);
  EXPECT_EQ(os_.written, 4);
  EXPECT_EQ(os_.read, 4);
}

TEST_F(TemporaryFiles, uses_the_page_cache_when_asked) {
  round_trip(long_file, Caching::page_cache);
  EXPECT_EQ(os_.written, 0);
  EXPECT_EQ(os_.read, 0);
}

TEST_F(TemporaryFiles, uses_the_page_cache_for_a_short_file) {
  round_trip(2 * slice_bytes + 123, Caching::none);
  EXPECT_EQ(os_.written, 0);
}

TEST_F(TemporaryFiles, uses_the_page_cache_without_a_block_device) {
  os_.on_fstat = [](struct stat& status) { status.st_dev = makedev(0, 42); };
  round_trip(long_file, Caching::none);
  EXPECT_EQ(os_.written, 0);
}

TEST_F(TemporaryFiles, uses_the_page_cache_when_direct_open_fails) {
  os_.refuse_open = true;
  round_trip(long_file, Caching::none);
  EXPECT_EQ(os_.written, 0);
}

TEST_F(TemporaryFiles, uses_the_page_cache_when_blocks_are_longer) {
  os_.refuse_transfers = true;
  round_trip(long_file, Caching::none);
}

TEST_F(TemporaryFiles, loses_nothing_to_short_transfers) {
  for (std::size_t const max : {(std::size_t{1} << 20) + 1, std::size_t{3} << 20, platform::direct_block + 512}) {
    os_.limit_transfers(max);
    round_trip(long_file, Caching::none);
    std::filesystem::remove(folder_.path() / "data");
  }
}

TEST_F(TemporaryFiles, reads_a_finished_file_past_the_page_cache) {
  if (!direct_here()) GTEST_SKIP() << "the folder for temporary files does not support O_DIRECT";
  round_trip(long_file, Caching::none);
  platform::ScopedSystem const scope(os_);
  os_.read = 0;
  auto const directory = Directory::open(folder_.path().string(), "test");
  auto const file = TemporaryFile::reopen(directory, "data", long_file);
  auto buffer = platform::make_direct_buffer(slice_bytes);
  file.read_at(slice_bytes, {buffer.get(), slice_bytes});
  expect_values({buffer.get(), slice_bytes}, slice_bytes);
  EXPECT_EQ(os_.read, 1);
}

}  // namespace
}  // namespace crossrank
