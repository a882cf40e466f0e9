#include <string>
#include <string_view>
#include <variant>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/rules/rule_set/rule_set_state.hpp"

namespace crossrank::checkpoint {

std::string RuleSet::State::own_stack_name(std::string_view name, TensorName const& parsed, std::size_t source) const {
  // The names of scales of such stacks are unknown.
  auto const found = layers_of(source).find(parsed.module);
  bool const plain = found != layers_of(source).end() && found->second[TensorRole::weight_scale] == nullptr;
  return plain ? names.stack_name(name) : std::string();
}

void RuleSet::State::refuse_order_of_vllm(LayerRule const& rule, std::string_view name,
                                          TensorName const& parsed) const {
  if (!set.saved_by_vllm || rule.from_file) return;
  auto const own = as_laid_out(rule, parsed.module);
  auto const* const column = std::get_if<ColumnLayer>(&own.kind);
  if (column == nullptr || column->order.stacked || column->layout != PartLayout::grouped) return;
  throw FormatError(
      {.operation = "merge rules",
       .message = "vLLM stores the queries, keys and values of this layer in another order than the model",
       .expected = "queries, keys and values of one head after the other",
       .got = "all queries of a rank, then its keys, then its values",
       .resource = std::string(name),
       .hint = "convert the original checkpoint; or keep vLLM's order with a rule for this layer that "
               "names its `parts`",
       .section = to_string(ErrorSection::rules)});
}

}  // namespace crossrank::checkpoint
