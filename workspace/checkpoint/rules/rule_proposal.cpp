#include "workspace/checkpoint/rules/rule_proposal.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/model/tensor_role.hpp"

namespace crossrank::checkpoint {
namespace {

std::string line(std::string_view key, std::string_view pattern, Json const& rest) {
  Json rule = Json::object();
  rule[std::string(key)] = std::string(pattern);
  for (auto const& [name, value] : rest.items()) rule[name] = value;
  return rule.dump();
}

std::string join(std::vector<std::string> const& lines) {
  std::string text = "choose a rule and pass it in a file with `rules`, {\"rules\": [...]}: ";
  for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : " or ") + lines[i];
  return text;
}

/// Returns the dimensions whose lengths differ between ranks.
std::vector<int> uneven_dimensions(std::span<SourceTensor const* const> shards, SourceTensor const& first) {
  std::vector<int> dimensions;
  for (std::size_t d = 0; d < first.shape.size(); ++d) {
    bool const uneven = std::any_of(shards.begin(), shards.end(), [&](SourceTensor const* shard) {
      return shard != nullptr && shard->shape.size() == first.shape.size() && shard->shape[d] != first.shape[d];
    });
    if (uneven) dimensions.push_back(static_cast<int>(d));
  }
  return dimensions;
}

}  // namespace

std::string propose_rules(std::string_view module, std::vector<std::string> const& shardings) {
  std::vector<std::string> lines;
  for (auto const& sharding : shardings)
    lines.push_back(line("layer", generalized(module), Json{{"sharding", sharding}}));
  return join(lines);
}

ErrorInfo unknown_parts(std::string_view module, std::size_t parts, std::string got) {
  Json widths = Json::array({parts > 2 ? 2 : 1, 1});  // a gate has one part in the rule, and two in the layer
  for (std::size_t i = 2; i < parts; ++i) widths.push_back(1);
  return {.message = "the widths of the parts of this fused layer are unknown",
          .expected = "a config.json with the model's sizes",
          .got = std::move(got),
          .resource = std::string(module),
          .hint =
              "add the model's config.json, or say in a rule how wide the parts are relative to each other, and "
              "pass it in a file with `rules`, {\"rules\": [...]}: " +
              line("layer", generalized(module), Json{{"sharding", "column"}, {"parts", std::move(widths)}})};
}

void refuse_uncovered(std::string_view name, std::span<SourceTensor const* const> shards,
                      std::vector<std::string> const& uncovered) {
  auto const found = std::find_if(shards.begin(), shards.end(), [](auto const* shard) { return shard != nullptr; });
  auto const& first = **found;
  auto const uneven = uneven_dimensions(shards, first);
  auto const parsed = parse_tensor_name(name);
  std::vector<std::string> lines;
  if (uneven.size() == 1) {
    lines.push_back(line("tensor", generalized(name), Json{{"axis", uneven.front()}}));
  } else {
    lines.push_back(line("layer", generalized(parsed.module), Json{{"sharding", "replicate"}}));
    if (first.shape.size() >= 2) {
      lines.push_back(line("layer", generalized(parsed.module), Json{{"sharding", "column"}}));
      lines.push_back(line("layer", generalized(parsed.module), Json{{"sharding", "row"}}));
    } else if (first.shape.size() == 1) {
      lines.push_back(line("tensor", generalized(name), Json{{"axis", 0}}));
    }
  }
  std::vector<std::string> details;
  for (std::size_t rank = 0; rank < shards.size() && rank < 16; ++rank) {
    details.push_back("tensor-parallel rank " + std::to_string(rank) + ": " +
                      (shards[rank] == nullptr
                           ? std::string("absent")
                           : std::string(name_of(shards[rank]->dtype)) + " " + to_string(shards[rank]->shape)));
  }
  auto message = std::string("no rule covers this tensor");
  if (uncovered.size() > 1) {
    message += ", nor those of " + std::to_string(uncovered.size() - 1) + " other layers";
    for (auto const& pattern : uncovered)
      details.push_back("no rule: " + line("layer", pattern, Json{{"sharding", "replicate"}}));
  }
  throw FormatError(
      {.operation = "merge rules",
       .message = std::move(message),
       .got = std::string(name_of(first.dtype)) + " " + to_string(first.shape) + " on " +
              std::to_string(shards.size()) + " ranks",
       .resource = std::string(name),
       .hint = join(lines) + "; {\"otherwise\": \"replicate\"} says that ranks have copies of whatever no rule covers",
       .details = std::move(details),
       .section = to_string(ErrorSection::name)});
}

}  // namespace crossrank::checkpoint
