#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/torch/pickle/pickle_reader.hpp"

namespace {

using namespace crossrank::codec;

/// Counts the values under the root, shared ones at each use. Traps when an accepted tree exceeds the limits.
std::uint64_t count(PickleValue value, std::size_t depth, PickleLimits const& limits) {
  if (depth > limits.depth) __builtin_trap();
  std::uint64_t values = 1;
  for (std::size_t i = 0; i < value.size(); ++i) values += count(value[i], depth + 1, limits);
  return values;
}

}  // namespace

/// Reads any bytes as a pickle, with each allowlist. They are refused with a `FormatError` that gives the byte, or the
/// tree is within the limits.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  for (auto const& allowlist : {torch_allowlist(), training_allowlist(), dcp_allowlist()}) {
    PickleOptions const options{
        .allowlist = allowlist, .limits = {.nodes = 50'000, .expanded = 100'000}, .source = "fuzz"};
    try {
      auto const tree = read_pickle({bytes.begin(), bytes.end()}, options);
      if (tree->nodes.size() > options.limits.nodes) __builtin_trap();
      if (count({*tree, tree->root}, 0, options.limits) > options.limits.expanded) __builtin_trap();
    } catch (crossrank::FormatError const& e) {
      if (e.section() != options.section || e.offset() > size) __builtin_trap();
    }
  }
  return 0;
}
