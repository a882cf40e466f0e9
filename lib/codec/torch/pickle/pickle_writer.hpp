#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {

/// Composes a pickle of protocol 2 that torch opens, also `weights_only`: dicts, plain values, tensors.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}
  /// A dict of what is written until `end_dict`: keys and values in turn.
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void text(std::string_view utf8);
  void integer(std::int64_t value);
  /// Any JSON value; binary as bytes.
  void value(Json const& value);
  /// A dense tensor that is all of storage `key`; lengths as torch counts them.
  void tensor(TorchDtype const& dtype, std::string_view key, std::span<std::int64_t const> lengths);
  [[nodiscard]] std::string finish() &&;

 private:
  void natural(std::uint64_t value);
  void real(double value);
  void bytes(Json::binary_t const& value);
  void global(std::string_view name);
  void numbers(std::span<std::int64_t const> values);

  std::string out_;
};

}  // namespace crossrank::codec
