#include "collectives/device/staged_pieces.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "lib/tensor/transfer/staging_buffers.hpp"

namespace crossrank::device {
namespace {

using algorithms::ByteRun;
using algorithms::Call;
using spi::OpKind;

/// How a call is divided: by bytes `[at, at + length)` of each of its buffers, or of each rank's part in a buffer.
enum class Division : std::uint8_t {
  none,           ///< not at all
  elements,       ///< of both buffers
  parts_of_out,   ///< of `in`, and of each rank's part in `out`
  parts_of_in,    ///< of each rank's part in `in`, and of `out`
  parts_of_both,  ///< of each rank's part in both
};

Division division_of(Call const& call) {
  switch (call.signature.op_kind) {
    case OpKind::broadcast:
    case OpKind::all_reduce:
    case OpKind::reduce: return Division::elements;
    case OpKind::gatherv:
    case OpKind::all_gatherv: return Division::parts_of_out;
    case OpKind::scatterv:
    case OpKind::reduce_scatterv: return Division::parts_of_in;
    // Of an uneven exchange, a rank does not know the parts between two others.
    case OpKind::all_to_allv: return call.is_even ? Division::parts_of_both : Division::none;
    default: return Division::none;
  }
}

/// Returns the length of a piece of one rank's part. The pieces of all ranks together are about as long as one of
/// elements.
std::size_t part_bytes(std::size_t ranks) {
  constexpr std::size_t unit = std::size_t{64} << 10;  // of whole elements, and no tiny copies
  return std::max(unit, staging_piece_bytes / ranks / unit * unit);
}

/// A range of bytes.
struct Range {
  std::size_t at = 0;
  std::size_t length = 0;

  /// Returns how many of the first `bytes` bytes are inside.
  [[nodiscard]] std::size_t inside(std::size_t bytes) const noexcept {
    return bytes <= at ? 0 : std::min(length, bytes - at);
  }
};

/// Cuts a buffer to a range.
template <class Buffer>
void cut(Buffer& buffer, Range range) {
  auto const bytes = range.inside(buffer.bytes.size());
  buffer.bytes = bytes == 0 ? decltype(buffer.bytes)() : buffer.bytes.subspan(range.at, bytes);
}

/// Returns a range of each rank's part in a buffer.
std::vector<ByteRun> runs_of(std::vector<std::size_t> const& counts, Range range) {
  std::vector<ByteRun> runs;
  std::size_t part = 0;
  for (auto const count : counts) {
    if (auto const bytes = range.inside(count); bytes > 0) runs.push_back({part + range.at, bytes});
    part += count;
  }
  return runs;
}

Call piece_of(Call const& call, Division division, Range range) {
  auto piece = call;
  bool const both = division == Division::parts_of_both;
  auto const take = [&](auto& buffer, std::vector<ByteRun>& runs, bool has_parts) {
    if (!has_parts) return cut(buffer, range);
    if (!buffer.bytes.empty()) runs = runs_of(call.counts, range);
  };
  take(piece.in, piece.in_runs, both || division == Division::parts_of_in);
  take(piece.out, piece.out_runs, both || division == Division::parts_of_out);
  for (auto* const counts : {&piece.counts, &piece.receive_counts}) {
    for (auto& count : *counts) count = range.inside(count);
  }
  return piece;
}

}  // namespace

std::vector<Call> staged_pieces(Call&& call) {
  auto const division = division_of(call);
  std::size_t bytes = 0;
  std::size_t length = staging_piece_bytes;
  if (division == Division::elements) {
    bytes = std::max(call.in.bytes.size(), call.out.bytes.size());
  } else if (division != Division::none && !call.counts.empty()) {
    bytes = *std::max_element(call.counts.begin(), call.counts.end());
    length = part_bytes(call.counts.size());
  }
  std::vector<Call> pieces;
  if (bytes <= length) {
    pieces.push_back(std::move(call));
    return pieces;
  }
  for (std::size_t at = 0; at < bytes; at += length) pieces.push_back(piece_of(call, division, {at, length}));
  // The buffer of a fused call is packed before the first piece and unpacked after the last one.
  for (auto piece = pieces.begin() + 1; piece != pieces.end(); ++piece) piece->pack = nullptr;
  for (auto piece = pieces.begin(); piece != pieces.end() - 1; ++piece) piece->unpack = nullptr;
  return pieces;
}

}  // namespace crossrank::device
