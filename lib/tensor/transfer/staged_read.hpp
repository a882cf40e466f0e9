#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include <crossrank/tensor.hpp>

namespace crossrank {

/// Takes the next bytes of a tensor. They are valid only during the call.
using TakePiece = std::function<void(std::span<std::byte const>)>;

/// Passes all bytes of a tensor to `take`, in order.
///
/// A tensor on the CPU is one piece. A tensor on a GPU comes in pieces of `staging_piece_bytes`, in the order of its
/// current stream, through two page-locked buffers: the GPU copies one piece while `take` uses the one before. Nothing
/// happens for a tensor of 0 bytes. Errors as for `require_readable` and `Event::synchronize`; what `take` throws.
void read_in_pieces(Tensor const& tensor, TakePiece const& take);

/// Copies the bytes of a tensor to pageable memory of the host, and returns when they are there. Errors as above.
void read_to_host(std::byte* to, Tensor const& tensor);

}  // namespace crossrank
