#include <cstddef>
#include <cstdint>
#include <span>

#include <crossrank/error.hpp>

#include "lib/codec/message/tensor_table.hpp"

/// Reads any bytes as the tensor table of a peer. They are refused, or every tensor lies inside the payload and the
/// table encodes to the same bytes.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank::codec;
  constexpr std::uint64_t payload = 4096;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const view = decode(bytes, payload);
    for (auto const& entry : view.entries) {
      if (!entry.present || entry.slot != own_payload) continue;
      if (entry.offset > payload || entry.nbytes > payload - entry.offset) __builtin_trap();
    }
    if (encoded_size({view.config, {view.entries.data(), view.entries.size()}}) != size) __builtin_trap();
  } catch (crossrank::FormatError const&) {
    return 0;
  }
  return 0;
}
