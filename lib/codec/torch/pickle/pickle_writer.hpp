#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <crossrank/json.hpp>

#include "lib/codec/torch/pickle/torch_dtype.hpp"

namespace crossrank::codec {

/// Writes a pickle of protocol 2 with dicts, plain values and tensors, which torch can open with `weights_only`.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}
  /// Begins a dict. Write keys and values alternately until `end_dict`.
  void begin_dict() { out_ += "}("; }
  void end_dict() { out_ += 'u'; }
  void text(std::string_view utf8);
  void integer(std::int64_t value);
  /// Writes any JSON value; a binary value as bytes.
  void value(Json const& value);
  /// Writes a dense tensor that covers storage `key`. `lengths` count torch's elements.
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
