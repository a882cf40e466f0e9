#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/state.hpp>

#include "lib/tensor/transfer/staged_read.hpp"
#include "lib/tensor/transfer/stream_handover.hpp"

namespace crossrank::checkpoint {

/// Reads the tensors of a state dict by their numbers, on the CPU or on GPUs.
///
/// Reads of a tensor on a GPU come after the work that the constructing thread had enqueued for it, and block the host
/// until the bytes are there. Thread-safe.
class WeightReader {
 public:
  /// Keeps the tensors alive. Errors as for `StreamHandover`.
  WeightReader(StateDict const& weights, std::string const& operation);

  [[nodiscard]] bool is_on_gpu(std::uint32_t tensor) const;
  /// Returns bytes of a tensor on the CPU, `count` from `begin` on.
  [[nodiscard]] std::span<std::byte const> bytes(std::uint32_t tensor, std::size_t begin, std::size_t count) const;
  /// Passes bytes of any tensor to `take`, in order. Errors as for `crossrank::read_in_pieces`.
  void read_in_pieces(std::uint32_t tensor, std::size_t begin, std::size_t count, TakePiece const& take) const;
  /// Copies bytes of any tensor. Errors as above.
  void read(std::uint32_t tensor, std::size_t begin, std::span<std::byte> to) const;

 private:
  /// The bytes of a tensor, which need less memory than the tensor with its shape.
  struct Bytes {
    std::shared_ptr<spi::Storage> storage{};  ///< null for an undefined tensor
    std::size_t offset = 0;
    std::size_t count = 0;
  };
  /// Returns a view of bytes of a tensor.
  [[nodiscard]] Tensor part(std::uint32_t tensor, std::size_t begin, std::size_t count) const;

  std::vector<Bytes> tensors_{};
  StreamHandover handover_;
};

}  // namespace crossrank::checkpoint
