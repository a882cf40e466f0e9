#include <crossrank/objects.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/with_operation_name.hpp"
#include "collectives/objects/peer_exception.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/core/own_part.hpp"
#include "collectives/objects/block_header.hpp"
#include "collectives/objects/user_code_scope.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/error_record.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"

namespace crossrank::detail {
namespace {

/// The result of `produce` on this rank: bytes, or an exception.
struct ProducedObject {
  Bytes bytes{};
  std::exception_ptr error{};
};

ProducedObject make(Collective const& group, Produce const& produce) {
  ProducedObject part;
  try {
    UserCodeScope const running(group);
    part.bytes = produce();
  } catch (...) {
    part.error = std::current_exception();
    part.bytes = encode_exception(part.error);
  }
  return part;
}

/// Moves bytes between the ranks.
template <class Call>
void move_between_ranks(Collective const& group, char const* operation, Call&& call) {
  run_own_part(group, operation, [&] { with_operation_name(operation, std::forward<Call>(call)); });
}

/// Runs the collective part of a call. If this rank's own part failed, that error takes precedence over one of the
/// call.
template <class Call>
void share(Collective const& group, char const* operation, ProducedObject const& part, Call&& call) {
  try {
    move_between_ranks(group, operation, std::forward<Call>(call));
  } catch (...) {
    if (!part.error) throw;
  }
  if (part.error) std::rethrow_exception(part.error);
}

[[noreturn]] void throw_remote(Collective const& group, char const* operation, std::vector<int> failed_ranks,
                               Bytes const& bytes) {
  throw peer_exception(group, operation, std::move(failed_ranks), bytes);
}

void require_rank(Collective const& group, char const* operation, char const* what, int rank) {
  require_open(group, operation);
  if (rank >= 0 && rank < group.world_size()) return;
  throw UsageError(error_in(*group.transport(), {.operation = operation,
                                                 .message = std::string(what) + " is not a rank of the group",
                                                 .expected = "0 to " + std::to_string(group.world_size() - 1),
                                                 .got = std::to_string(rank)}));
}

Tensor over(void* data, std::size_t bytes) {
  return Tensor::from_blob(data, {static_cast<std::int64_t>(bytes)}, Dtype::u8);
}

/// Moves the rest of a block after its header. A receiver allocates memory piece by piece.
template <class Move>
void move_rest(Bytes& bytes, std::uint64_t size, Move const& move) {
  for (std::uint64_t at = 0; at < size;) {
    auto const piece = std::min<std::uint64_t>(size - at, largest_piece);
    if (bytes.size() < at + piece) bytes.resize(at + piece);
    auto tensor = over(bytes.data() + at, piece);
    move(tensor);
    at += piece;
  }
}

Tensor part_of(Bytes& bytes, std::uint64_t at, std::int64_t size) {
  return size == 0 ? Tensor::empty({0}, Dtype::u8) : over(bytes.data() + at, as_size(size));
}

/// Moves a block for each rank between it and the root, in rounds that bound the root's buffer. These are collectives:
/// messages would mix with those that the user has under way. `sizes` has 0 for ranks without a block. Calls
/// `move(at, rows)` for the part of each block that begins at `at`.
template <class Move>
void move_in_rounds(std::span<std::uint64_t const> sizes, Move const& move) {
  constexpr std::uint64_t least_piece = std::uint64_t{1} << 20;
  auto const piece = std::max<std::uint64_t>(largest_piece / sizes.size(), least_piece);
  auto const longest = *std::max_element(sizes.begin(), sizes.end());
  for (std::uint64_t at = 0; at < longest; at += std::min(piece, longest - at)) {
    std::vector<std::int64_t> rows;
    for (auto const size : sizes) rows.push_back(static_cast<std::int64_t>(std::min(size - std::min(at, size), piece)));
    move(at, std::span<std::int64_t const>(rows));
  }
}

/// Gathers the blocks of the other ranks, which `sizes` has, on the root in `out`.
void gather_blocks(Collective const& group, int root, std::span<std::uint64_t const> sizes, Bytes& mine,
                   std::vector<Bytes>& out) {
  bool const is_root = group.rank() == root;
  move_in_rounds(sizes, [&](std::uint64_t at, std::span<std::int64_t const> rows) {
    Bytes buffer(is_root ? as_size(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) : 0);
    auto joined = part_of(buffer, 0, static_cast<std::int64_t>(buffer.size()));
    group.gatherv(joined, part_of(mine, at, at_rank(rows, group.rank())), {rows, root});
    auto from = buffer.begin();
    for (std::size_t rank = 0; is_root && rank < rows.size(); from += rows[rank++])
      out[rank].insert(out[rank].end(), from, from + rows[rank]);
  });
}

/// Scatters the root's blocks; returns this rank's. `sizes` has 0 for the root.
Bytes scatter_blocks(Collective const& group, int root, std::span<std::uint64_t const> sizes,
                     std::span<Bytes const> blocks) {
  bool const is_root = group.rank() == root;
  Bytes mine;
  move_in_rounds(sizes, [&](std::uint64_t at, std::span<std::int64_t const> rows) {
    Bytes buffer;
    for (std::size_t rank = 0; is_root && rank < rows.size(); ++rank) {
      if (rows[rank] == 0) continue;
      auto const from = blocks[rank].begin() + static_cast<std::ptrdiff_t>(at);
      buffer.insert(buffer.end(), from, from + rows[rank]);
    }
    auto const own = at_rank(rows, group.rank());
    mine.resize(mine.size() + as_size(own));
    auto part = part_of(mine, mine.size() - as_size(own), own);
    group.scatterv(part, part_of(buffer, 0, static_cast<std::int64_t>(buffer.size())), {rows, root});
  });
  return mine;
}

void broadcast_block(Collective const& group, char const* operation, int root, Bytes& bytes, bool& failed) {
  BlockHeader head;
  if (group.rank() == root) head = BlockHeader::of(bytes, failed);
  auto tensor = over(&head, sizeof head);
  NamedCalls(group, operation, root).broadcast(tensor, root);
  if (group.rank() != root) {
    failed = head.failed != 0;
    bytes = head.inlined_bytes();
  }
  if (!head.is_inlined()) move_rest(bytes, head.size, [&](Tensor& piece) { group.broadcast(piece, {root}); });
}

/// `root`: the rank that receives the blocks; empty: all ranks.
std::vector<BlockHeader> all_gather_heads(Collective const& group, char const* operation, std::optional<int> root,
                                          BlockHeader mine) {
  auto heads = per_rank<BlockHeader>(group.world_size());
  auto out = over(heads.data(), heads.size() * sizeof(BlockHeader));
  NamedCalls(group, operation, root).all_gather(out, over(&mine, sizeof mine));
  return heads;
}

/// If a rank's part failed, broadcasts the first failure and throws it.
void throw_failures(Collective const& group, char const* operation, std::vector<BlockHeader> const& heads,
                    ProducedObject& part) {
  std::vector<int> failed_ranks;
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    if (heads[rank].failed != 0) failed_ranks.push_back(static_cast<int>(rank));
  }
  if (failed_ranks.empty()) return;
  bool failed = true;
  auto bytes = part.bytes;
  broadcast_block(group, operation, failed_ranks.front(), bytes, failed);
  if (!part.error) throw_remote(group, operation, std::move(failed_ranks), bytes);
}

}  // namespace

Bytes broadcast_bytes(Collective const& group, char const* operation, int root, Produce const& produce) {
  require_rank(group, operation, "the root", root);
  bool const mine = group.rank() == root;
  auto part = mine ? make(group, produce) : ProducedObject{};
  bool failed = part.error != nullptr;
  share(group, operation, part, [&] { broadcast_block(group, operation, root, part.bytes, failed); });
  if (mine) return {};
  if (failed) throw_remote(group, operation, {root}, part.bytes);
  return std::move(part.bytes);
}

std::vector<Bytes> all_gather_bytes(Collective const& group, char const* operation, Produce const& produce) {
  require_open(group, operation);
  auto part = make(group, produce);
  std::vector<Bytes> out;
  share(group, operation, part, [&] {
    auto const heads = all_gather_heads(group, operation, {}, BlockHeader::of(part.bytes, part.error != nullptr));
    throw_failures(group, operation, heads, part);
    if (part.error) return;
    if (std::all_of(heads.begin(), heads.end(), [](BlockHeader const& head) { return head.is_inlined(); })) {
      for (auto const& head : heads) out.push_back(head.inlined_bytes());
    } else {
      out = group.all_gatherv(part.bytes);
    }
  });
  return out;
}

std::vector<Bytes> gather_bytes(Collective const& group, char const* operation, int root, Produce const& produce) {
  require_rank(group, operation, "the root", root);
  auto part = make(group, produce);
  std::vector<Bytes> out;
  share(group, operation, part, [&] {
    auto const heads = all_gather_heads(group, operation, root, BlockHeader::of(part.bytes, part.error != nullptr));
    throw_failures(group, operation, heads, part);
    if (part.error) return;
    std::vector<std::uint64_t> sizes;
    for (std::size_t rank = 0; rank < heads.size(); ++rank) {
      bool const moves = static_cast<int>(rank) != root && !heads[rank].is_inlined();
      sizes.push_back(moves ? heads[rank].size : 0);
      if (group.rank() == root) out.push_back(heads[rank].inlined_bytes());
    }
    gather_blocks(group, root, sizes, part.bytes, out);
    if (group.rank() != root) return;
    at_rank(out, root) = std::move(part.bytes);
  });
  return out;
}

Bytes scatter_bytes(Collective const& group, char const* operation, int root,
                    std::function<std::vector<Bytes>()> const& produce) {
  require_rank(group, operation, "the root", root);
  std::vector<Bytes> parts;
  auto const ranks = as_size(group.world_size());
  std::vector<std::uint64_t> sizes(ranks);
  auto const sizes_as_bytes = std::as_writable_bytes(std::span(sizes));
  // Also announces whether there are objects to scatter, so that no rank waits for a root that failed.
  auto const told = broadcast_bytes(group, operation, root, [&] {
    parts = produce();
    if (parts.size() != ranks) {
      throw UsageError(error_in(*group.transport(),
                                {.operation = operation,
                                 .message = "expected one object per rank",
                                 .expected = std::to_string(ranks),
                                 .got = std::to_string(parts.size()),
                                 .hint = "pass one object for each rank of the group, in the order of the ranks"}));
    }
    for (std::size_t rank = 0; rank < ranks; ++rank)
      sizes[rank] = static_cast<int>(rank) == root ? 0 : parts[rank].size();
    return Bytes(sizes_as_bytes.begin(), sizes_as_bytes.end());
  });
  if (group.rank() != root)
    std::copy_n(told.begin(), std::min(told.size(), sizes_as_bytes.size()), sizes_as_bytes.begin());
  Bytes mine;
  move_between_ranks(group, operation, [&] { mine = scatter_blocks(group, root, sizes, parts); });
  return group.rank() == root ? std::move(at_rank(parts, root)) : mine;
}

void send_bytes(Collective const& group, char const* operation, int dst, Produce const& produce) {
  require_rank(group, operation, "the destination", dst);
  auto part = make(group, produce);
  share(group, operation, part, [&] {
    auto head = BlockHeader::of(part.bytes, part.error != nullptr);
    group.send(over(&head, sizeof head), dst, header_tag);
    if (!head.is_inlined())
      move_rest(part.bytes, part.bytes.size(), [&](Tensor& piece) { group.send(piece, dst, body_tag); });
  });
}

Bytes recv_bytes(Collective const& group, char const* operation, int src) {
  require_rank(group, operation, "the source", src);
  BlockHeader head;
  Bytes bytes;
  move_between_ranks(group, operation, [&] {
    auto tensor = over(&head, sizeof head);
    group.recv(tensor, src, header_tag);
    bytes = head.inlined_bytes();
    if (!head.is_inlined()) move_rest(bytes, head.size, [&](Tensor& piece) { group.recv(piece, src, body_tag); });
  });
  if (head.failed != 0) throw_remote(group, operation, {src}, bytes);
  return bytes;
}

void refuse_object_in(Collective const& group, char const* operation, FormatError const& error) {
  auto info = error_in(*group.transport(), error.info());
  info.operation = operation;
  throw FormatError(std::move(info));
}

void refuse_list(Collective const& group, char const* operation, std::size_t expected, std::size_t got) {
  throw MismatchError(
      error_in(*group.transport(), {.operation = operation,
                                    .message = "the lengths of the root's list and of this rank's list differ",
                                    .expected = std::to_string(expected),
                                    .got = std::to_string(got)}));
}

}  // namespace crossrank::detail
