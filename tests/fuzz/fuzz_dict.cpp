#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/error.hpp>

#include "collectives/tensor_dict/dict_codec.hpp"
#include "lib/codec/io/checked_size.hpp"

namespace {

/// Allocates like a receiver with little memory. Tensors on a device are on the CPU here.
crossrank::Tensor small_memory(crossrank::Shape const& shape, crossrank::Dtype dtype, crossrank::Device::Kind) {
  if (crossrank::dense_bytes(shape, dtype) > 4096)
    throw crossrank::FormatError({.operation = "fuzz", .message = "too large", .section = "tensor"});
  return crossrank::Tensor::empty(shape, dtype);
}

}  // namespace

/// Reads any bytes as the metadata of a peer's dictionary of tensors. They are refused with a `FormatError`, or the
/// metadata of the result can be encoded and read again.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  try {
    auto const decoded = decode_dict(std::as_bytes(std::span(data, size)), small_memory);
    auto const again = encode_dict(decoded.dict, [](auto const&, auto const&) { return 1; });
    if (decode_dict(again.bytes, small_memory).dict.size() != decoded.dict.size()) __builtin_trap();
  } catch (FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
