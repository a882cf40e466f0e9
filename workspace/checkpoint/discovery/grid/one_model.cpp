#include "workspace/checkpoint/discovery/grid/one_model.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(ShardSource const& a, ShardSource const& b, std::string const& in_a, std::string const& in_b) {
  throw FormatError(
      {.operation = open_operation,
       .message = "the shards are of different models: " + a.name() + " has " + in_a + ", " + b.name() + " has " + in_b,
       .resource = b.name(),
       .hint = "keep the shards of each model in a separate directory",
       .section = to_string(ErrorSection::shards)});
}

struct Width {
  std::int64_t width = 0;
  std::size_t source = 0;
};

/// Throws unless the norms of each kind have one width. They are as wide as the model on every rank and stage.
void compare_widths(ShardSet const& set) {
  std::map<std::string, Width> widths;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    for (auto const& tensor : set.sources[i]->tensors()) {
      if (!is_norm_of_hidden(tensor)) continue;
      auto name = generalized(tensor.name);
      auto const [at, fresh] = widths.emplace(name, Width{tensor.shape[0], i});
      if (fresh || at->second.width == tensor.shape[0] || at->second.source == i) continue;
      refuse(*set.sources[at->second.source], *set.sources[i], name + " with width " + std::to_string(at->second.width),
             "the same with width " + std::to_string(tensor.shape[0]));
    }
  }
}

/// Throws unless the ranks of a stage share tensor names. They hold pieces of the same tensors.
void compare_names(ShardSet const& set) {
  std::map<std::tuple<int, int>, std::size_t> firsts;
  for (std::size_t i = 0; i < set.sources.size(); ++i) {
    auto const [at, fresh] = firsts.emplace(std::tuple(set.places[i].pp, set.places[i].ep), i);
    auto const& first = *set.sources[at->second];
    auto const& other = *set.sources[i];
    if (fresh || first.tensors().empty() || other.tensors().empty()) continue;
    std::unordered_set<std::string_view> names;
    for (auto const& tensor : first.tensors()) names.insert(tensor.name);
    bool const shared = std::any_of(other.tensors().begin(), other.tensors().end(),
                                    [&](auto const& tensor) { return names.contains(tensor.name); });
    if (!shared)
      refuse(first, other, first.tensors().front().name, other.tensors().front().name + " and none of its names");
  }
}

}  // namespace

bool is_norm_of_hidden(SourceTensor const& tensor) {
  if (tensor.shape.size() != 1) return false;
  std::string_view const name = tensor.name;
  return name.find("input_layernorm") != std::string_view::npos || name.find("ln_1.") != std::string_view::npos ||
         name.find("post_attention_layernorm") != std::string_view::npos ||
         name.find("attention_norm.") != std::string_view::npos ||
         name.find("linear_qkv.layer_norm") != std::string_view::npos;
}

void require_one_model(ShardSet const& set) {
  if (set.sources.size() < 2) return;
  compare_names(set);
  compare_widths(set);
}

}  // namespace crossrank::checkpoint
