#include <cstddef>
#include <cstdint>
#include <memory>

#include "tests/codec/safetensors/image_fixture.hpp"

/// Reads any bytes as a safetensors file. They are refused with a `FormatError`, or all tensors lie inside them.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank;
  using namespace crossrank::codec;
  Bytes const bytes = to_bytes({reinterpret_cast<char const*>(data), size});
  for (auto const strictness : {Strictness::strict, Strictness::lenient}) {
    for (auto const kind : {ImageKind::plain, ImageKind::workspace}) {
      try {
        std::size_t total = 0;
        auto const state = open_bytes(bytes, {.kind = kind, .strictness = strictness}).read_all();
        for (auto const& [name, tensor] : state.weights) total += tensor.nbytes();
        if (total > size) __builtin_trap();
      } catch (FormatError const& e) {
        if (e.section().empty() || e.offset() > size + 8) __builtin_trap();
        (void)e.to_json().dump();
      }
    }
  }
  return 0;
}
