#pragma once
#include <crossrank/export.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Returns a writable tensor with the same bytes, whose writes nobody else sees. Local.
///
/// A large tensor in a mapped file or in shared memory is mapped again, copy-on-write: a page is copied when it is
/// first written, and the copy keeps the original alive. All such copies of a file share one mapping, which ends with
/// the last of them. Any other tensor is copied, as by `Tensor::clone`; errors as there.
[[nodiscard]] CROSSRANK_EXPORT Tensor clone_on_write(Tensor const& tensor);

}  // namespace crossrank
