#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace crossrank::checkpoint {

/// A number inside a name: "model.layers." 7 ".mlp..."
struct NumberedName {
  std::string_view before{};
  std::int64_t number = 0;
  std::string_view after{};
};

/// Where the name says of which decoder layer it is; views into `name`.
[[nodiscard]] std::optional<NumberedName> find_layer(std::string_view name);
/// Where the name says of which expert it is: "...experts.7.w1", or "...experts.linear_fc1.weight7" of experts that one
/// module multiplies together.
[[nodiscard]] std::optional<NumberedName> find_expert(std::string_view name);

}  // namespace crossrank::checkpoint
