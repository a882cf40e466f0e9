#include "workspace/checkpoint/plan/checks/missing_scales.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "workspace/checkpoint/model/tensor_role.hpp"
#include "workspace/checkpoint/quantization/number_format.hpp"
#include "workspace/checkpoint/quantization/quantization_hints.hpp"

namespace crossrank::checkpoint {
namespace {

bool is_fp8(Dtype dtype) {
  return dtype == Dtype::f8_e4m3 || dtype == Dtype::f8_e5m2 || dtype == Dtype::f8_e4m3fnuz ||
         dtype == Dtype::f8_e5m2fnuz;
}

bool is_packed(Dtype dtype) { return dtype == Dtype::u8 || dtype == Dtype::f4; }

/// Returns whether it is a matrix by name and shape with a dtype that needs a scale.
bool wants_scale(SourceTensor const& tensor, TensorName const& name) {
  return name.role == TensorRole::weight && !name.suffix.empty() && tensor.shape.size() >= 2 &&
         (is_fp8(tensor.dtype) || is_packed(tensor.dtype));
}

/// Returns whether the config names a quantizer that writes a scale for each quantized weight.
bool writes_scales(std::string algorithm) {
  std::transform(algorithm.begin(), algorithm.end(), algorithm.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::array<std::string_view, 7> known{
      "fp8", "fp4", "awq", "modelopt", "mixed_precision", "compressed-tensors", "mxfp"};
  return std::any_of(known.begin(), known.end(), [&](auto word) { return algorithm.find(word) != std::string::npos; });
}

/// The layers in the order of their tensors.
struct Layers {
  std::vector<std::string_view> order{};
  std::unordered_map<std::string_view, LayerTensors> by_module{};
};

Layers layers_of(std::span<SourceTensor const> tensors) {
  Layers layers;
  for (auto const& tensor : tensors) {
    auto const name = parse_tensor_name(tensor.name);
    if (name.role == TensorRole::weight && !wants_scale(tensor, name)) continue;
    auto const [at, is_new] = layers.by_module.try_emplace(name.module);
    if (is_new) layers.order.push_back(name.module);
    at->second.set(name.role, tensor);
  }
  return layers;
}

/// Returns the number of layers with a weight scale for each dtype of the weight.
std::map<Dtype, std::size_t> count_scaled(Layers const& layers) {
  std::map<Dtype, std::size_t> scaled;
  for (auto const& [module, tensors] : layers.by_module) {
    auto const* const weight = tensors[TensorRole::weight];
    if (weight != nullptr && tensors[TensorRole::weight_scale] != nullptr) ++scaled[weight->dtype];
  }
  return scaled;
}

bool has_second_scale(LayerTensors const& tensors) {
  return tensors[TensorRole::weight_scale_2] != nullptr || tensors[TensorRole::global_scale] != nullptr;
}

Defect lack(std::string_view module, std::string text) {
  return {DefectKind::scales, std::string(module), std::move(text),
          "save the model again, or copy the scale from the checkpoint of the weight"};
}

}  // namespace

std::vector<Defect> check_missing_scales(std::span<SourceTensor const> tensors, std::string const& where,
                                         Json const& config, Json const& quantization) {
  QuantizationHints const hints(config, quantization);
  auto const layers = layers_of(tensors);
  auto const scaled = count_scaled(layers);
  std::vector<Defect> defects;
  for (auto const module : layers.order) {
    auto const& layer = layers.by_module.at(module);
    auto const* const weight = layer[TensorRole::weight];
    if (weight == nullptr) continue;
    auto const dtype = std::string(name_of(weight->dtype));
    if (auto const* const scale = layer[TensorRole::weight_scale]) {
      bool const nvfp4 = is_packed(weight->dtype) && scale->dtype == Dtype::f8_e4m3;
      if (nvfp4 && !has_second_scale(layer))
        defects.push_back(lack(module, "the NVFP4 weight has no global scale (weight_scale_2) in " + where));
      continue;
    }
    auto const others = scaled.contains(weight->dtype) ? scaled.at(weight->dtype) : 0;
    if (others == 0 && !has_second_scale(layer) && !writes_scales(hints.of(module).algorithm)) continue;
    auto text = "the " + dtype + " weight has no weight_scale in " + where;
    if (others > 0) text += ", where " + std::to_string(others) + " others have one";
    defects.push_back(lack(module, std::move(text)));
  }
  return defects;
}

}  // namespace crossrank::checkpoint
