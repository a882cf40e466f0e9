#include <cstddef>
#include <cstdint>
#include <string_view>

#include <crossrank/error.hpp>
#include <crossrank/tensor/shape.hpp>

#include "workspace/checkpoint/parts/file_recipe.hpp"

namespace {

using namespace crossrank::checkpoint;

/// Returns whether the runs are in a tensor of a recipe.
bool is_inside(FileRecipe const& recipe, TensorAt const& at, crossrank::StridedRuns const& runs) {
  auto const& tensor = recipe.inputs.at(at.source).tensors.at(at.tensor);
  return runs.start(runs.count - 1) + runs.run_bytes <= crossrank::dense_bytes(tensor.shape, tensor.dtype);
}

void require_filled(FileRecipe const& recipe, MergedTensor const& tensor) {
  std::uint64_t bytes = 0;
  for (auto const& piece : tensor.pieces) {
    bytes += piece.copy.from.bytes();
    if (!is_inside(recipe, piece.input, piece.copy.from)) __builtin_trap();
  }
  bool const computed = tensor.rule->combines_values();
  if (computed ? tensor.inputs.empty() : bytes != tensor.bytes) __builtin_trap();
  for (auto const& replica : tensor.replica_runs) {
    if (!is_inside(recipe, replica.kept, replica.runs) || !is_inside(recipe, replica.other, replica.runs))
      __builtin_trap();
  }
}

}  // namespace

/// Reads any bytes as the recipe of an output file. They are refused with a `FormatError`, or the recipe fills each of
/// its tensors with bytes that its inputs have.
extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  constexpr std::size_t stamps = 4;
  try {
    auto const recipe = read_recipe({reinterpret_cast<char const*>(data), size}, stamps, "fuzz");
    for (auto const& input : recipe.inputs) {
      for (auto const file : input.files) {
        if (file >= stamps) __builtin_trap();
      }
    }
    for (auto const& tensor : recipe.tensors) require_filled(recipe, tensor);
  } catch (crossrank::FormatError const& e) {
    if (e.section().empty()) __builtin_trap();
  }
  return 0;
}
