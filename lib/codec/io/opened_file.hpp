#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "lib/codec/io/byte_source.hpp"
#include "lib/platform/fd.hpp"

namespace crossrank::codec {

/// A file that is open for reading as long as this stands.
class OpenedFile final : public ByteSource {
 public:
  /// Follows symbolic links, as model caches are made of them. `IoError`; `FormatError` for what is no regular file.
  OpenedFile(std::filesystem::path const& path, std::string const& operation);
  /// Takes a descriptor that is open already.
  OpenedFile(platform::Fd fd, std::string name);
  [[nodiscard]] std::string const& name() const noexcept override { return file_.name(); }
  [[nodiscard]] std::uint64_t size() const noexcept override { return file_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override { file_.read_at(offset, to); }

 private:
  platform::Fd fd_;
  FileSource file_;
};

/// A part of another source; offset 0 is the part's first byte.
class RangeSource final : public ByteSource {
 public:
  /// `FormatError` when the part does not lie inside `whole`.
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
