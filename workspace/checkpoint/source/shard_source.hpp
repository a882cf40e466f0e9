#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/json.hpp>
#include <crossrank/shape.hpp>

namespace crossrank::checkpoint {

/// One tensor as a source describes it.
struct SourceTensor {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
};

/// One input: a rank's file, or a set of files that together are one rank's part (or the whole model).
///
/// Opening checks all that describes the data; the data itself is read on request, from any thread.
class ShardSource {
 public:
  virtual ~ShardSource() = default;

  /// Path, for messages.
  [[nodiscard]] virtual std::string const& name() const noexcept = 0;
  /// Unique names, in the order of the file.
  [[nodiscard]] virtual std::span<SourceTensor const> tensors() const noexcept = 0;
  /// What is not a tensor: config, plain values. An empty object where there is nothing.
  [[nodiscard]] virtual Json const& attributes() const noexcept = 0;
  [[nodiscard]] virtual std::uint64_t bytes_on_disk() const noexcept = 0;
  /// Files that hold the data of `tensors()[tensor]`, for messages.
  [[nodiscard]] virtual std::vector<std::string> files_of(std::size_t) const { return {name()}; }
  /// Copies bytes `[offset, offset + out.size())` of the contiguous row-major form of `tensors()[tensor]`. `IoError`,
  /// `FormatError`.
  virtual void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const = 0;

 protected:
  ShardSource() = default;
  ShardSource(ShardSource const&) = default;
  ShardSource& operator=(ShardSource const&) = default;
  ShardSource(ShardSource&&) = default;
  ShardSource& operator=(ShardSource&&) = default;
};

/// A source that keeps its own description.
class DescribedSource : public ShardSource {
 public:
  [[nodiscard]] std::string const& name() const noexcept final { return name_; }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept final { return tensors_; }
  [[nodiscard]] Json const& attributes() const noexcept final { return attributes_; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept final { return bytes_on_disk_; }

 protected:
  explicit DescribedSource(std::string name, Json attributes = Json::object(), std::uint64_t bytes_on_disk = 0)
      : name_(std::move(name)), attributes_(std::move(attributes)), bytes_on_disk_(bytes_on_disk) {}

  std::string name_;
  std::vector<SourceTensor> tensors_{};
  Json attributes_;
  std::uint64_t bytes_on_disk_;
};

}  // namespace crossrank::checkpoint
