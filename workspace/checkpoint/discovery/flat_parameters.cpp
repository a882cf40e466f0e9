#include "workspace/checkpoint/discovery/flat_parameters.hpp"

#include <string>
#include <string_view>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns whether a tensor is a flat parameter: "_flat_param" of PyTorch, "flat_param" of its first versions, or
/// "flat_param_0" of fairscale.
bool is_flat_parameter(SourceTensor const& tensor) {
  if (tensor.shape.size() != 1) return false;
  auto const last = split_name(tensor.name).back();
  if (last == "_flat_param" || last == "flat_param") return true;
  constexpr std::string_view numbered = "flat_param_";
  return last.starts_with(numbered) && is_number(last.substr(numbered.size()));
}

}  // namespace

void require_no_flat_parameters(ShardSet const& set) {
  for (auto const& source : set.sources) {
    for (auto const& tensor : source->tensors()) {
      if (!is_flat_parameter(tensor)) continue;
      throw FormatError(
          {.operation = open_operation,
           .message = "this is a flat parameter of FSDP; the files do not have the names and shapes of its parameters",
           .expected = "parameters under their own names",
           .got = tensor.name + " " + to_string(tensor.shape),
           .resource = source->name(),
           .hint = "load it with the program that wrote it and save it again with "
                   "StateDictType.FULL_STATE_DICT or SHARDED_STATE_DICT",
           .section = to_string(ErrorSection::name)});
    }
  }
}

}  // namespace crossrank::checkpoint
