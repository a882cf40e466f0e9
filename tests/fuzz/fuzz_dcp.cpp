#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/torch/dcp_metadata.hpp"

/// Reads any bytes as the metadata of a distributed checkpoint. They are refused with a `FormatError`, or the pieces of
/// every tensor cover it and every piece has a file with a plain name.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace crossrank::codec;
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    auto const metadata = read_dcp_metadata({bytes.begin(), bytes.end()}, "fuzz");
    for (auto const& tensor : metadata.tensors) {
      if (tensor.items.size() != tensor.boxes.size()) __builtin_trap();
      if (find_coverage_error({tensor.shape.data(), tensor.shape.size()}, tensor.boxes)) __builtin_trap();
      for (auto const& item : tensor.items) {
        if (item.file.empty() || item.file.find('/') != std::string::npos || item.file == "..") __builtin_trap();
        if (item.length > UINT64_MAX - item.offset) __builtin_trap();
      }
    }
  } catch (crossrank::FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
