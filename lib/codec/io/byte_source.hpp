#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <crossrank/spi/storage.hpp>

namespace crossrank::codec {

/// Random access to bytes, of a file or in memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Returns a name for messages, such as the path.
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  /// Fills `to` from byte `offset` on; the range lies inside `size()`. `IoError` when the system refuses, `FormatError`
  /// when the file has become shorter.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// Returns memory that holds all bytes, for views without a copy; null when there is none.
  [[nodiscard]] virtual std::shared_ptr<spi::Storage> memory() const noexcept { return nullptr; }
  /// Returns whether a reader must read it only in the calling thread.
  [[nodiscard]] virtual bool wants_one_reader() const noexcept { return false; }
};

/// Random access for writing bytes.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  /// Writes all of `from` at byte `offset`.
  virtual void write_at(std::uint64_t offset, std::span<std::byte const> from) = 0;
};

/// The bytes of a storage.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::shared_ptr<spi::Storage> memory);
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return memory_->size_bytes(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] std::shared_ptr<spi::Storage> memory() const noexcept override { return memory_; }

 private:
  std::string name_;
  std::shared_ptr<spi::Storage> memory_;
};

/// An open file, read by `pread` through the platform's seam. It does not own the descriptor.
class FileSource final : public ByteSource {
 public:
  /// Reads the size of the file. `IoError` when that fails, `FormatError` when it is not a regular file.
  FileSource(std::string name, int fd);
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return size_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  std::string name_;
  int fd_;
  std::uint64_t size_;
};

/// An open file, written by `pwrite` through the platform's seam. It does not own the descriptor.
class FileSink final : public ByteSink {
 public:
  FileSink(std::string name, int fd);
  void write_at(std::uint64_t offset, std::span<std::byte const> from) override;

 private:
  std::string name_;
  int fd_;
};

/// The caller's memory, large enough for all writes.
class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::span<std::byte> memory) : memory_(memory) {}
  void write_at(std::uint64_t offset, std::span<std::byte const> from) override;

 private:
  std::span<std::byte> memory_;
};

}  // namespace crossrank::codec
