#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::checkpoint {

/// A name split around a number: "model.layers." 7 ".mlp..."
struct NumberedName {
  std::string_view before{};
  std::int64_t number = 0;
  std::string_view after{};
};

/// Finds the number of the decoder layer in a name. The result refers to `name`.
[[nodiscard]] std::optional<NumberedName> find_layer(std::string_view name);
/// Finds the number of the expert in a name: "...experts.7.w1", or "...experts.linear_fc1.weight7" of grouped experts.
/// The result refers to `name`.
[[nodiscard]] std::optional<NumberedName> find_expert(std::string_view name);
/// Returns whether it is the name of a routed expert or of a stack of them. Shared experts are layers like others.
[[nodiscard]] bool is_of_routed_experts(std::string_view name);
/// Returns a name up to the number of its expert, such as "...experts.7"; empty if it has none.
[[nodiscard]] std::string_view expert_prefix(std::string_view name);

}  // namespace crossrank::checkpoint
