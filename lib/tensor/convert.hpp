#pragma once
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Converts all elements of `from` into `to`, which has as many, on the current stream of a GPU. The tensors do not
/// overlap, and `to` is not checked. Numbers, costs and errors as for `Tensor::to(Dtype)`. Converts where `from` is
/// when `to` is elsewhere.
void convert_elements(Tensor const& to, Tensor const& from);

}  // namespace crossrank
