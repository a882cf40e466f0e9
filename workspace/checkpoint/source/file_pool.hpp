#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lib/codec/io/byte_source.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::checkpoint {

class PooledFile;

/// Identifies the state of a file, to detect later changes.
struct FileStamp {
  std::string path{};
  std::uint64_t size = 0;
  std::int64_t changed = 0;  ///< time of the last change, in nanoseconds
  auto operator<=>(FileStamp const&) const = default;
};

/// Keeps a bounded number of files open for reading. A checkpoint may have more files than a process may have
/// descriptors.
class FilePool : public std::enable_shared_from_this<FilePool> {
 public:
  explicit FilePool(std::size_t limit = default_limit()) noexcept : limit_(limit) {}
  /// Returns an eighth of the process's descriptor limit, but at least 8 and at most 128. There may be several pools,
  /// and other code needs descriptors too.
  [[nodiscard]] static std::size_t default_limit() noexcept;
  /// Opens `path` and follows links. Throws `IoError`, or `FormatError` if it is not a regular file.
  [[nodiscard]] std::shared_ptr<PooledFile const> open(std::filesystem::path const& path);
  /// Returns the number of open descriptors.
  [[nodiscard]] std::size_t open_files() const;
  /// Returns a stamp of each file that was opened, taken at that time, sorted by path.
  [[nodiscard]] std::vector<FileStamp> stamps() const;

 private:
  friend class PooledFile;
  [[nodiscard]] std::shared_ptr<platform::Fd const> borrow(PooledFile const& file);
  /// Returns the descriptor of a file if it is open, else null.
  [[nodiscard]] std::shared_ptr<platform::Fd const> find(PooledFile const& file);
  void forget(PooledFile const& file);
  void note(FileStamp stamp);

  mutable std::mutex mutex_{};
  std::size_t limit_;
  struct Open {
    PooledFile const* file;
    std::shared_ptr<platform::Fd const> fd;
  };
  std::list<Open> recent_{};  ///< most recently used first
  std::unordered_map<PooledFile const*, std::list<Open>::iterator> index_{};
  std::vector<FileStamp> stamps_{};
};

/// A file of a pool, read by `pread`. Thread-safe.
///
/// The descriptor may be closed and opened again between reads. A file that was replaced meanwhile is an error.
class PooledFile final : public codec::ByteSource {
 public:
  ~PooledFile() override;
  PooledFile(PooledFile const&) = delete;
  PooledFile& operator=(PooledFile const&) = delete;

  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  /// Returns the stamp that was taken when the file was opened first.
  [[nodiscard]] FileStamp const& stamp() const noexcept { return stamp_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  friend class FilePool;
  PooledFile(std::shared_ptr<FilePool> pool, std::string name) : pool_(std::move(pool)), name_(std::move(name)) {}
  [[nodiscard]] platform::Fd open_now() const;
  void learn();

  std::shared_ptr<FilePool> pool_;
  std::string name_;
  std::uint64_t size_ = 0;
  FileStamp stamp_{};
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool known_ = false;
};

}  // namespace crossrank::checkpoint
