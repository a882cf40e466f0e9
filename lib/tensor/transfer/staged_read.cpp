#include "lib/tensor/transfer/staged_read.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <crossrank/spi/device_provider.hpp>

#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/device_tensor.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank {
namespace {

constexpr auto const* staged_read_operation = "read a tensor from a GPU";

/// Copies one tensor to the host, alternately through two buffers.
class PieceReader {
 public:
  explicit PieceReader(Tensor const& tensor)
      : tensor_(tensor),
        stream_(current_stream(tensor.device())),
        staging_(device::process_staging(tensor.device().kind)),
        provider_(spi::device_provider(tensor.device().kind)) {}
  /// Gives the buffers back, which a copy may still fill after an error.
  ~PieceReader() {
    try {
      // The copies of a read that ended have passed; those of a read that failed still use the tensor.
      if (pending_) tensor_.record_stream(stream_);
      for (auto& piece : pieces_) {
        if (piece.buffer.storage) staging_.give_back(std::move(piece.buffer), std::move(piece.copied));
      }
    } catch (std::exception const&) {  // the storage of a buffer waits for its last use by itself
    }
  }
  PieceReader(PieceReader const&) = delete;
  PieceReader& operator=(PieceReader const&) = delete;

  void run(TakePiece const& take) {
    auto const bytes = tensor_.nbytes();
    enqueue(0);
    for (std::size_t at = 0; at < bytes; at += device::staging_piece_bytes) {
      if (at + device::staging_piece_bytes < bytes) enqueue(at + device::staging_piece_bytes);
      auto const& piece = piece_at(at);
      piece.copied.synchronize();
      take({piece.buffer.storage->data(), length_at(at)});
    }
    pending_ = false;
  }

 private:
  struct Piece {
    device::StagingBuffers::Buffer buffer{};
    Event copied{};
  };

  [[nodiscard]] Piece& piece_at(std::size_t at) { return pieces_[at / device::staging_piece_bytes % 2]; }
  [[nodiscard]] std::size_t length_at(std::size_t at) const {
    return std::min(device::staging_piece_bytes, tensor_.nbytes() - at);
  }

  /// `take` has returned for the piece that was in this buffer before.
  void enqueue(std::size_t at) {
    auto& piece = piece_at(at);
    if (!piece.buffer.storage) piece.buffer = staging_.take(device::staging_piece_bytes);
    pending_ = true;
    provider_.copy(stream_, {.to = piece.buffer.storage->data(),
                             .from = tensor_.data() + at,
                             .from_device = tensor_.device(),
                             .run_bytes = length_at(at)});
    piece.copied = stream_.record();
  }

  Tensor const& tensor_;
  Stream stream_;
  device::StagingBuffers& staging_;
  spi::DeviceProvider& provider_;
  std::array<Piece, 2> pieces_{};
  bool pending_ = false;  ///< a copy that nobody has waited for may be under way
};

}  // namespace

void read_in_pieces(Tensor const& tensor, TakePiece const& take) {
  require_readable(tensor, staged_read_operation);
  if (tensor.nbytes() == 0) return;
  if (!on_gpu(tensor)) return take(tensor.bytes());
  PieceReader(tensor).run(take);
}

void read_to_host(std::byte* to, Tensor const& tensor) {
  read_in_pieces(tensor, [&to](std::span<std::byte const> piece) {
    copy_memory(to, piece.data(), piece.size());
    to += piece.size();
  });
}

}  // namespace crossrank
