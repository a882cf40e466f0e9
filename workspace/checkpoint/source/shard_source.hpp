#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/json.hpp>
#include <crossrank/tensor/shape.hpp>

namespace crossrank::checkpoint {

/// Name, dtype and shape of one tensor of a source.
struct SourceTensor {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  bool operator==(SourceTensor const&) const = default;
};

/// One input: the file or files of one rank, or a whole model.
///
/// Opening a source validates all descriptions of the data. The data is read on request. Reads are thread-safe.
class ShardSource {
 public:
  virtual ~ShardSource() = default;

  /// Returns the path, for messages.
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  /// Returns the tensors in file order. Names are unique.
  [[nodiscard]] virtual std::span<SourceTensor const> tensors() const noexcept = 0;
  /// Returns everything that is not a tensor, such as a config and plain values; an empty object if there is nothing.
  [[nodiscard]] virtual Json const& attributes() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_on_disk() const noexcept = 0;
  /// Returns the files that hold the data of `tensors()[tensor]`; empty if they are not known.
  [[nodiscard]] virtual std::vector<std::string> files_of(std::size_t) const { return {name()}; }
  /// Returns whether the data is in memory, so that many short reads cost no more than a long one.
  [[nodiscard]] virtual bool is_in_memory() const noexcept { return false; }
  /// Returns the source that opened the files: this one, unless it gives the tensors of another source new names.
  [[nodiscard]] virtual ShardSource const& stored() const noexcept { return *this; }
  /// Copies bytes `[offset, offset + out.size())` of the contiguous row-major form of `tensors()[tensor]`. Throws
  /// `IoError` or `FormatError`.
  virtual void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const = 0;

 protected:
  ShardSource() = default;
  ShardSource(ShardSource const&) = default;
  ShardSource& operator=(ShardSource const&) = default;
  ShardSource(ShardSource&&) = default;
  ShardSource& operator=(ShardSource&&) = default;
};

/// Base of sources that store their description.
class DescribedSource : public ShardSource {
 public:
  [[nodiscard]] std::string const& name() const noexcept final { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept final { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept final { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept final { return bytes_on_disk_; }

 protected:
  explicit DescribedSource(std::string name, Json attributes = Json::object(), std::uint64_t bytes_on_disk = 0)
      : name_(std::move(name)), attributes_(std::move(attributes)), bytes_on_disk_(bytes_on_disk) {}
  /// Throws `UsageError` unless `length` bytes from `offset` on belong to `tensors()[tensor]`.
  void require_range(std::size_t tensor, std::uint64_t offset, std::size_t length) const;

  std::string name_;
  std::vector<SourceTensor> tensors_{};
  Json attributes_;
  std::uint64_t bytes_on_disk_;
};

}  // namespace crossrank::checkpoint
