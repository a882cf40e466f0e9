#pragma once
#include <string>

#include <crossrank/crossrank.hpp>

namespace trtllm_export {

/// Dimensions of the small Llama that the example pretends to have trained.
struct Sizes {
  int layers = 3;
  int hidden = 64;
  int heads = 8;
  int kv_heads = 4;
  int ffn = 96;
  int vocabulary = 80;
  [[nodiscard]] int head() const noexcept { return hidden / heads; }
};

/// The position of a rank in the grid on which the model was trained.
struct Place {
  int tp = 0;
  int tp_size = 1;
  int pp = 0;
  int pp_size = 1;
};

/// Returns decoder layer `number` as a tensor-parallel rank holds it: weights in F32, and the scales that calibration
/// found for its part. The config describes the quantization of each linear layer.
[[nodiscard]] xr::RankState make_layer(Sizes const& sizes, int number, Place const& place);

/// Returns the tensors outside the layers: the embedding on the first stage, the last norm and the head on the last
/// stage.
[[nodiscard]] xr::RankState make_ends(Sizes const& sizes, Place const& place);

/// The layers of a stage, in order. If they do not divide evenly, the first stages have one more.
struct StageLayers {
  int begin = 0;
  int end = 0;
};
[[nodiscard]] StageLayers layers_of(Sizes const& sizes, int stage, int stages);

}  // namespace trtllm_export
