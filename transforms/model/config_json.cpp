#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/transforms/config.hpp>

namespace crossrank {
namespace {

constexpr std::array<std::pair<std::string_view, Dtype>, 11> dtype_names{{{"float64", Dtype::f64},
                                                                          {"double", Dtype::f64},
                                                                          {"float32", Dtype::f32},
                                                                          {"fp32", Dtype::f32},
                                                                          {"float16", Dtype::f16},
                                                                          {"half", Dtype::f16},
                                                                          {"fp16", Dtype::f16},
                                                                          {"bfloat16", Dtype::bf16},
                                                                          {"bf16", Dtype::bf16},
                                                                          {"float8_e4m3fn", Dtype::f8_e4m3},
                                                                          {"float8_e5m2", Dtype::f8_e5m2}}};

[[noreturn]] void refuse(std::string field, std::string message, std::string expected, std::string got) {
  throw UsageError({.operation = "config_from_json",
                    .message = std::move(message),
                    .expected = std::move(expected),
                    .got = std::move(got),
                    .resource = std::move(field)});
}

Json name_of_dtype(std::optional<Dtype> dtype) {
  for (auto const& [name, value] : dtype_names) {
    if (dtype == value) return std::string(name);
  }
  return nullptr;
}

Dtype dtype_named(std::string const& field, std::string const& text) {
  std::string known;
  for (auto const& [name, value] : dtype_names) {
    if (name == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  refuse(field, "the dtype is unknown", known, text);
}

/// Reads the fields of one object and refuses those that nobody asked for.
class Fields {
 public:
  Fields(Json const& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json.is_object()) refuse(path_, "the config is not a JSON object", "an object", json.type_name());
  }
  void read(char const* name, bool& value) {
    if (auto const* const found = find(name)) {
      if (!found->is_boolean()) refuse(path_ + name, "wrong type", "true or false", found->dump());
      value = found->get<bool>();
    }
  }
  void read(char const* name, std::string& value) {
    if (auto const* const found = find(name)) {
      if (!found->is_string()) refuse(path_ + name, "wrong type", "a string", found->dump());
      value = found->get<std::string>();
    }
  }
  void read(char const* name, std::optional<Dtype>& value) {
    auto const* const found = find(name);
    if (found == nullptr) return;
    if (found->is_null()) return value.reset();
    if (!found->is_string()) refuse(path_ + name, "wrong type", "a string or null", found->dump());
    value = dtype_named(path_ + name, found->get<std::string>());
  }
  Json const* find(char const* name) {
    known_.emplace_back(name);
    auto const found = json_.find(name);
    if (found == json_.end()) return nullptr;
    ++found_;
    return &*found;
  }
  /// Throws if the object has another field.
  void finish() const {
    if (found_ == json_.size()) return;
    for (auto const& [name, value] : json_.items()) {
      if (std::ranges::find(known_, name) == known_.end()) refuse(path_ + name, "the field is unknown", known(), name);
    }
  }

 private:
  [[nodiscard]] std::string known() const {
    std::string text;
    for (auto const name : known_) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
  }

  Json const& json_;
  std::string path_;
  std::vector<std::string_view> known_{};
  std::size_t found_ = 0;
};

}  // namespace

Json to_json(DDPTransformConfig const& config) {
  return {{"name", config.common.name},
          {"find_unused_parameters", config.find_unused_parameters},
          {"gradient_as_bucket_view", config.gradient_as_bucket_view},
          {"static_graph", config.static_graph}};
}

Json to_json(FullyShardTransformConfig const& config) {
  auto const& mixed = config.mixed_precision;
  Json const reshard = std::visit([](auto value) { return Json(value); }, config.reshard_after_forward);
  return {{"name", config.common.name},
          {"reshard_after_forward", reshard},
          {"mixed_precision",
           {{"param_dtype", name_of_dtype(mixed.param_dtype)},
            {"reduce_dtype", name_of_dtype(mixed.reduce_dtype)},
            {"output_dtype", name_of_dtype(mixed.output_dtype)},
            {"cast_forward_inputs", mixed.cast_forward_inputs},
            {"fp8_enabled", mixed.fp8_enabled},
            {"fp8_format", name_of_dtype(mixed.fp8_format)}}},
          {"offload", {{"cpu_offload", config.offload.cpu_offload}, {"pin_memory", config.offload.pin_memory}}},
          {"use_hybrid_sharding", config.use_hybrid_sharding},
          {"sync_grad_accum", config.sync_grad_accum}};
}

DDPTransformConfig ddp_config_from_json(Json const& json) {
  DDPTransformConfig config;
  Fields fields(json, "");
  fields.read("name", config.common.name);
  fields.read("find_unused_parameters", config.find_unused_parameters);
  fields.read("gradient_as_bucket_view", config.gradient_as_bucket_view);
  fields.read("static_graph", config.static_graph);
  fields.finish();
  return config;
}

FullyShardTransformConfig fully_shard_config_from_json(Json const& json) {
  FullyShardTransformConfig config;
  Fields fields(json, "");
  fields.read("name", config.common.name);
  if (auto const* const reshard = fields.find("reshard_after_forward")) {
    if (reshard->is_boolean()) {
      config.reshard_after_forward = reshard->get<bool>();
    } else if (reshard->is_number_integer()) {
      auto const ranks = reshard->get<int>();
      if (ranks < 1 || *reshard != ranks)
        refuse("reshard_after_forward", "the number of ranks is out of range", "1 to 2147483647", reshard->dump());
      config.reshard_after_forward = ranks;
    } else {
      refuse("reshard_after_forward", "wrong type", "true, false or a number of ranks", reshard->dump());
    }
  }
  if (auto const* const mixed = fields.find("mixed_precision")) {
    auto& into = config.mixed_precision;
    Fields inner(*mixed, "mixed_precision.");
    inner.read("param_dtype", into.param_dtype);
    inner.read("reduce_dtype", into.reduce_dtype);
    inner.read("output_dtype", into.output_dtype);
    inner.read("cast_forward_inputs", into.cast_forward_inputs);
    inner.read("fp8_enabled", into.fp8_enabled);
    std::optional<Dtype> format = into.fp8_format;
    inner.read("fp8_format", format);
    into.fp8_format = format.value_or(into.fp8_format);
    inner.finish();
  }
  if (auto const* const offload = fields.find("offload")) {
    Fields inner(*offload, "offload.");
    inner.read("cpu_offload", config.offload.cpu_offload);
    inner.read("pin_memory", config.offload.pin_memory);
    inner.finish();
  }
  fields.read("use_hybrid_sharding", config.use_hybrid_sharding);
  fields.read("sync_grad_accum", config.sync_grad_accum);
  fields.finish();
  return config;
}

}  // namespace crossrank
