#include "lib/tensor/strided_runs.hpp"

#include <string>

#include "lib/core/as_size.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {

std::size_t resolve_dim(Shape const& shape, std::int64_t dim, char const* operation) {
  auto const rank = static_cast<std::int64_t>(shape.size());
  auto const from_front = dim < 0 ? dim + rank : dim;
  if (from_front < 0 || from_front >= rank) {
    throw UsageError({.operation = operation,
                      .message = "the dimension does not exist",
                      .expected = "a dimension of " + to_string(shape),
                      .got = std::to_string(dim)});
  }
  return as_size(from_front);
}

TensorSlice slice_runs(Tensor const& tensor, std::int64_t dim, std::int64_t begin, std::int64_t length,
                       char const* operation) {
  if (!tensor.defined()) throw_undefined({.operation = operation});
  auto const& shape = tensor.shape();
  auto const at = resolve_dim(shape, dim, operation);
  if (begin < 0 || length < 0 || begin > shape[at] || length > shape[at] - begin) {
    throw UsageError({.operation = operation,
                      .message = "the range is outside the dimension",
                      .expected = "0 to " + std::to_string(shape[at]) + " of dimension " + std::to_string(at) + " of " +
                                  to_string(shape),
                      .got = std::to_string(length) + " from " + std::to_string(begin)});
  }
  TensorSlice slice;
  slice.shape = shape.with(at, length);
  if (tensor.nbytes() == 0 || length == 0) return slice;
  if (length == shape[at]) {  // the whole tensor
    slice.runs = {.count = 1, .run_bytes = tensor.nbytes(), .stride_bytes = tensor.nbytes()};
    return slice;
  }

  // From here on no length is zero, and every product divides the checked number of elements.
  std::size_t inner = 1;
  for (std::size_t d = at + 1; d < shape.size(); ++d) inner *= as_size(shape[d]);
  auto const row_bits = inner * bits_of(tensor.dtype());
  auto const whole = as_size(shape[at]);
  slice.runs.count = as_size(tensor.numel()) / (inner * whole);
  auto const first_bit = as_size(begin) * row_bits;
  auto const run_bits = as_size(length) * row_bits;
  auto const stride_bits = whole * row_bits;
  if (first_bit % 8 != 0 || run_bits % 8 != 0 || (slice.runs.count > 1 && stride_bits % 8 != 0)) {
    throw UsageError(
        {.operation = operation,
         .message = "the slice begins or ends inside a byte",
         .expected = "ends on whole bytes of " + to_string(tensor),
         .got = std::to_string(length) + " from " + std::to_string(begin) + " of dimension " + std::to_string(at)});
  }
  slice.runs.first_byte = first_bit / 8;
  slice.runs.run_bytes = run_bits / 8;
  slice.runs.stride_bytes = stride_bits / 8;
  return slice;
}

}  // namespace crossrank
