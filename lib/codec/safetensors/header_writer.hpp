#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/json/json_text.hpp"

namespace crossrank::codec {

/// Composes the header of a safetensors file: metadata first, then the tensors in the order of their data.
class HeaderWriter {
 public:
  /// State images need `ControlEscapes::numeric`.
  explicit HeaderWriter(ControlEscapes escapes = ControlEscapes::short_forms);
  /// Adds a metadata entry. Returns the offset of the value in the file, for values that are filled in later. Such a
  /// value must not need escapes.
  std::size_t add_metadata(std::string_view key, std::string_view value);
  /// Adds a tensor with the data from `begin` to `end`. Ends the metadata.
  void add_tensor(std::string_view name, Dtype dtype, Shape const& shape, std::uint64_t begin, std::uint64_t end);
  /// Returns length field and header, padded with spaces so that the data begins on a multiple of `alignment`, which is
  /// a multiple of 8. `UsageError` when the header is larger than the format allows.
  [[nodiscard]] std::string finish(std::size_t alignment) &&;

 private:
  void end_metadata();
  std::string text_;
  ControlEscapes escapes_;
  bool in_metadata_ = true;
  bool first_ = true;
};

}  // namespace crossrank::codec
