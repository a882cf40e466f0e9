#include "workspace/checkpoint/rules/expert_stack.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {

bool stacks_concatenate(std::string_view name, std::span<std::int64_t const> lengths, ModelSizes const& sizes) {
  auto const total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  auto const said = sizes[SizeName::experts];
  if (said && total == *said) return true;
  if (said && std::all_of(lengths.begin(), lengths.end(), [&](auto length) { return length == *said; })) return false;
  throw FormatError(
      {.operation = "merge rules",
       .message = said ? "the experts of the expert-parallel ranks do not add up, and no rank has all of them"
                       : "the config does not give the number of experts, so the stacks may be pieces or replicas",
       .expected = said ? std::to_string(*said) + " experts" : std::string("\"num_local_experts\" or the like"),
       .got = std::to_string(total) + " experts on " + std::to_string(lengths.size()) + " ranks",
       .resource = std::string(name),
       .hint = said ? "check `ep`, or that all files are of one model"
                    : "give `rules` with {\"sizes\": {\"num_local_experts\": " + std::to_string(total) +
                          "}, \"rules\": []}",
       .section = shape_section});
}

}  // namespace crossrank::checkpoint
