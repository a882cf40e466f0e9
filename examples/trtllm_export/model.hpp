#pragma once
#include <string>

#include <crossrank/crossrank.hpp>

namespace trtllm_export {

/// Lengths of the small Llama that the example trains in its mind.
struct Sizes {
  int layers = 3;
  int hidden = 64;
  int heads = 8;
  int kv_heads = 4;
  int ffn = 96;
  int vocabulary = 80;
  [[nodiscard]] int head() const noexcept { return hidden / heads; }
};

/// Place of a rank in the grid in which the model was trained.
struct Place {
  int tp = 0;
  int tp_size = 1;
  int pp = 0;
  int pp_size = 1;
};

/// What a tensor-parallel rank has of decoder layer `number`: weights in F32, and the scales that calibration found for
/// its part, as a state whose config says how each linear layer is quantised.
[[nodiscard]] xr::RankState make_layer(Sizes const& sizes, int number, Place const& place);

/// What it has outside of layers: the embedding on the first stage, the last norm and the head on the last one.
[[nodiscard]] xr::RankState make_ends(Sizes const& sizes, Place const& place);

/// Layers of a stage, in order; the first stages have one more where they do not come out even.
struct StageLayers {
  int begin = 0;
  int end = 0;
};
[[nodiscard]] StageLayers layers_of(Sizes const& sizes, int stage, int stages);

}  // namespace trtllm_export
