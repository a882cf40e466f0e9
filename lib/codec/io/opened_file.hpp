#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "lib/codec/io/byte_source.hpp"
#include "lib/platform/files/fd.hpp"

namespace crossrank::codec {

/// A file that stays open for reading as long as the object exists.
class OpenedFile final : public ByteSource {
 public:
  /// Opens a file. Follows symbolic links, because model caches consist of them. `IoError`; `FormatError` when it is
  /// not a regular file.
  OpenedFile(std::filesystem::path const& path, std::string const& operation);
  /// Takes over an open descriptor.
  OpenedFile(platform::Fd fd, std::string name);
  [[nodiscard]] std::string const& name() const noexcept override { return file_.name(); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override { file_.read_at(offset, to); }

 private:
  platform::Fd fd_;
  FileSource file_;
};

/// A part of another source. Offset 0 is the first byte of the part.
class RangeSource final : public ByteSource {
 public:
  /// Selects `bytes` bytes from `begin` on. `FormatError` when the part is not inside `whole`.
  RangeSource(std::shared_ptr<ByteSource const> whole, std::uint64_t begin, std::uint64_t bytes, std::string name);
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_; }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override { whole_->read_at(begin_ + offset, to); }

 private:
  std::shared_ptr<ByteSource const> whole_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
  std::string name_;
};

}  // namespace crossrank::codec
