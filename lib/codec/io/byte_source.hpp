#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <crossrank/spi/storage.hpp>

namespace crossrank::codec {

/// Bytes that a reader reads: a file, or memory.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// For messages: a path, or what the memory is.
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t size() const noexcept = 0;
  /// Fills `to` from byte `offset` on; the range lies inside `size()`. `IoError` when the system refuses, `FormatError`
  /// when the bytes have gone since.
  virtual void read_at(std::uint64_t offset, std::span<std::byte> to) const = 0;
  /// Memory that holds all of it from its first byte on, for views without a copy; null when there is none.
  [[nodiscard]] virtual std::shared_ptr<spi::Storage> memory() const noexcept { return nullptr; }
  /// Whether a reader is to read it in the thread that asked for it, all of it.
  [[nodiscard]] virtual bool wants_one_reader() const noexcept { return false; }
};

/// Where a writer writes.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  /// Writes all of `from` at byte `offset`.
  virtual void write_at(std::uint64_t offset, std::span<std::byte const> from) = 0;
};

/// All bytes of a storage.
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
  /// `IoError` when the size cannot be learnt, `FormatError` when it is no regular file.
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

/// Memory of the caller's, as large as what will be written.
class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::span<std::byte> memory) : memory_(memory) {}
  void write_at(std::uint64_t offset, std::span<std::byte const> from) override;

 private:
  std::span<std::byte> memory_;
};

}  // namespace crossrank::codec
