#include "workspace/checkpoint/rules/expert_stack.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"

namespace crossrank::checkpoint {

bool stacks_concatenate(std::string_view name, std::span<std::int64_t const> lengths, ModelSizes const& sizes) {
  auto const total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  auto const configured = sizes[SizeName::experts];
  if (configured && total == *configured) return true;
  if (configured && std::all_of(lengths.begin(), lengths.end(), [&](auto length) { return length == *configured; }))
    return false;
  throw FormatError(
      {.operation = "merge rules",
       .message = configured
                      ? "the experts of the expert-parallel ranks do not add up, and no rank has all of them"
                      : "the config does not give the number of experts, so the stacks may be pieces or replicas",
       .expected =
           configured ? std::to_string(*configured) + " experts" : std::string("\"num_local_experts\" or the like"),
       .got = std::to_string(total) + " experts on " + std::to_string(lengths.size()) + " ranks",
       .resource = std::string(name),
       .hint = configured ? "check `ep`, or that all files are of one model"
                          : "give `rules` with {\"sizes\": {\"num_local_experts\": " + std::to_string(total) +
                                "}, \"rules\": []}",
       .section = to_string(ErrorSection::shape)});
}

}  // namespace crossrank::checkpoint
