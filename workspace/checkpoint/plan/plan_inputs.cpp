#include "workspace/checkpoint/plan/plan_inputs.hpp"

#include <string>
#include <vector>

namespace crossrank::checkpoint {
namespace {

/// Reads an enumerator that was saved as a number.
template <class Enum>
Enum saved_enum(Json const& inputs, char const* key, Enum last) {
  auto const number = inputs.value(key, 0);
  if (number < 0 || number > static_cast<int>(last))
    throw Json::out_of_range::create(401, std::string(key) + " is " + std::to_string(number), &inputs);
  return static_cast<Enum>(number);
}

}  // namespace

Json to_json(PlanInputs const& inputs) {
  auto const& options = inputs.options;
  return {{"path", inputs.shards.string()},
          {"rules", options.rules.string()},
          {"tp", options.tp},
          {"pp", options.pp},
          {"ep", options.ep},
          {"pattern", options.pattern},
          {"policy", static_cast<int>(options.policy)},
          {"crc", static_cast<int>(options.crc)},
          {"extra_globals", options.extra_globals},
          {"model_key", options.model_key},
          {"moe_ep", options.moe_ep},
          {"fused_layout", static_cast<int>(options.fused_layout)}};
}

PlanInputs plan_inputs_from_json(Json const& json) {
  return {.shards = json.value("path", std::string()),
          .options = {.rules = json.value("rules", std::string()),
                      .tp = json.value("tp", 0),
                      .pp = json.value("pp", 0),
                      .ep = json.value("ep", 0),
                      .pattern = json.value("pattern", std::string()),
                      .policy = saved_enum(json, "policy", ScalePolicy::requantize),
                      .crc = saved_enum(json, "crc", ArchiveCrc::ignore),
                      .extra_globals = json.value("extra_globals", std::vector<std::string>()),
                      .model_key = json.value("model_key", std::string()),
                      .moe_ep = json.value("moe_ep", 0),
                      .fused_layout = saved_enum(json, "fused_layout", FusedLayout::plain)}};
}

}  // namespace crossrank::checkpoint
