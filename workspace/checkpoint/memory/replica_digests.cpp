#include "workspace/checkpoint/memory/replica_digests.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/io/parallel_for.hpp"
#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/workers/worker_pool.hpp"

namespace crossrank::checkpoint {
namespace {

/// Bytes of a box that one rank holds; all of the box's bytes that are in the runs.
struct Digested {
  HeldTensor const* held = nullptr;
  HeldBox const* box = nullptr;
  int rank = 0;
  std::uint32_t tensor = 0;  ///< of this rank, if it is the rank
  StridedRuns runs{};
};

/// What has one digest each: for each box of a replica in turn, the bytes of each rank that holds a part of the box.
using Replica = std::vector<Digested>;

/// The replica that others are compared with.
struct KeptReplica {
  TensorAt at{};
  StridedRuns runs{};

  [[nodiscard]] bool is_of(ReplicaRuns const& other) const noexcept {
    auto const fields = [](StridedRuns const& of) {
      return std::tie(of.count, of.run_bytes, of.first_byte, of.stride_bytes);
    };
    return at == other.kept && fields(runs) == fields(other.runs);
  }
};

[[noreturn]] void refuse(std::string const& operation, std::string_view tensor, std::string message,
                         std::vector<int> ranks, std::string hint) {
  auto got = "ranks " + std::to_string(ranks.front()) + " and " + std::to_string(ranks.back());
  throw FormatError({.operation = operation,
                     .message = std::move(message),
                     .got = std::move(got),
                     .resource = std::string(tensor),
                     .hint = std::move(hint),
                     .failed_ranks = std::move(ranks),
                     .section = "data"});
}

/// Finds the replicas of all tensors. There may be hundreds of thousands, so none is stored: each visit finds them
/// again, in the same order.
class ReplicaFinder {
 public:
  ReplicaFinder(WeightCells const& cells, MergeLayout const& layout, std::string const& operation)
      : cells_(cells), layout_(layout), operation_(operation) {}

  /// Calls `visitor.keep(replica)` for the first of several replicas and then
  /// `visitor.compare(replica, tensor, must_differ)` for each of the others.
  void visit(auto& visitor) const {
    for (auto const& cell : cells_.cells) visit_copies(*cell, visitor);
    std::optional<KeptReplica> kept;
    for (auto const& tensor : layout_.tensors) {
      for (auto const& pair : tensor.replica_runs) {
        require_equal_boxes(tensor.name, pair);
        if (!kept || !kept->is_of(pair)) {
          kept = {pair.kept, pair.runs};
          visitor.keep(first_copy(pair.kept, pair.runs));
        }
        visitor.compare(first_copy(pair.other, pair.runs), tensor.name, pair.must_differ);
      }
    }
  }

 private:
  static void visit_copies(CellSource const& cell, auto& visitor) {
    for (std::size_t i = 0; i < cell.tensors().size(); ++i) {
      auto const& tensor = cell.tensors()[i];
      auto const& held = cell.held(i);
      auto const bytes = dense_bytes(tensor.shape, tensor.dtype);
      for (auto const& box : held.boxes) {
        if (box.copies.size() < 2) continue;
        for (std::size_t copy = 0; copy < box.copies.size(); ++copy) {
          Replica replica;
          for (auto const rank : box.copies[copy]) {
            replica.push_back({&held, &box, rank, cell.own(i), {.run_bytes = bytes, .stride_bytes = bytes}});
          }
          if (copy == 0) {
            visitor.keep(std::move(replica));
          } else {
            visitor.compare(std::move(replica), tensor.name, false);
          }
        }
      }
    }
  }

  void require_equal_boxes(std::string_view name, ReplicaRuns const& pair) const {
    auto const& kept = cells_.cells[pair.kept.source]->held(pair.kept.tensor);
    auto const& other = cells_.cells[pair.other.source]->held(pair.other.tensor);
    bool const alike = std::equal(kept.boxes.begin(), kept.boxes.end(), other.boxes.begin(), other.boxes.end(),
                                  [](auto const& a, auto const& b) {
                                    return a.box.begin == b.box.begin && a.box.size == b.box.size &&
                                           a.copies.front().size() == b.copies.front().size();
                                  });
    if (alike) return;
    refuse(operation_, name, "ranks shard replicas of a tensor differently",
           {kept.boxes.front().copies.front().front(), other.boxes.front().copies.front().front()},
           "use the same placements for all tensor-parallel ranks");
  }

  [[nodiscard]] Replica first_copy(TensorAt at, StridedRuns const& runs) const {
    auto const& cell = *cells_.cells[at.source];
    auto const& held = cell.held(at.tensor);
    Replica replica;
    for (auto const& box : held.boxes) {
      for (auto const rank : box.copies.front()) replica.push_back({&held, &box, rank, cell.own(at.tensor), runs});
    }
    return replica;
  }

  WeightCells const& cells_;
  MergeLayout const& layout_;
  std::string const& operation_;
};

/// Collects what this rank computes digests of.
class OwnDigests {
 public:
  explicit OwnDigests(WeightCells const& cells) : cells_(cells) {}

  void keep(Replica const& replica) {
    for (auto const& one : replica) {
      if (one.rank != cells_.rank) continue;
      list_.push_back(one);
      bytes_ += one.runs.bytes();
    }
  }
  void compare(Replica const& replica, std::string_view, bool) { keep(replica); }

  /// Returns the digests in the order of the visit.
  [[nodiscard]] std::vector<std::uint64_t> compute() const {
    std::vector<std::uint64_t> digests(list_.size());
    codec::parallel_for(list_.size(), bytes_, [&](std::size_t i) { digests[i] = digest_of(list_[i]); });
    return digests;
  }

 private:
  [[nodiscard]] std::uint64_t digest_of(Digested const& one) const {
    codec::StreamingChecksum digest;
    auto const unit = static_cast<std::uint64_t>(one.held->unit);
    for (std::uint64_t run = 0; run < one.runs.count && one.runs.run_bytes > 0; ++run) {
      auto const first = static_cast<std::int64_t>(one.runs.start(run) / unit);
      auto const last = static_cast<std::int64_t>((one.runs.start(run) + one.runs.run_bytes + unit - 1) / unit);
      read_own_units(cells_, one.tensor, *one.held, *one.box, first, last, [&](auto piece) { digest.update(piece); });
    }
    return digest.digest();
  }

  WeightCells const& cells_;
  std::deque<Digested> list_{};  // a vector would need memory for two lists while it grows
  std::uint64_t bytes_ = 0;
};

/// Compares the digests of all ranks, which `all` has in the order of the visit.
class DigestComparison {
 public:
  DigestComparison(std::vector<std::vector<std::byte>> const& all, std::string const& operation)
      : all_(all), next_(all.size()), operation_(operation) {}

  void keep(Replica replica) {
    kept_digests_ = read(replica);
    kept_ = std::move(replica);
  }

  void compare(Replica const& replica, std::string_view tensor, bool must_differ) {
    auto const digests = read(replica);
    auto const first = std::mismatch(digests.begin(), digests.end(), kept_digests_.begin(), kept_digests_.end()).first;
    bool const differ = first != digests.end();
    if (differ == must_differ || replica.empty()) return;
    auto const at = differ ? first - digests.begin() : 0;
    refuse(operation_, tensor,
           differ ? "ranks hold different values of a tensor that must agree"
                  : "ranks hold the same bytes of a tensor that should be in pieces",
           {kept_[as_size(at)].rank, replica[as_size(at)].rank},
           differ ? "synchronize the replicas, or pass placements that say how the tensor is sharded"
                  : "give a rule that says whether each rank holds all of it or a piece");
  }

 private:
  [[nodiscard]] std::vector<std::uint64_t> read(Replica const& replica) {
    std::vector<std::uint64_t> digests(replica.size());
    for (std::size_t i = 0; i < replica.size(); ++i) {
      auto const rank = as_size(replica[i].rank);
      std::memcpy(&digests[i], all_[rank].data() + sizeof(std::uint64_t) * next_[rank]++, sizeof(std::uint64_t));
    }
    return digests;
  }

  std::vector<std::vector<std::byte>> const& all_;
  std::vector<std::size_t> next_;  ///< of each rank: number of the next digest
  std::string const& operation_;
  Replica kept_{};
  std::vector<std::uint64_t> kept_digests_{};
};

}  // namespace

void require_equal_replicas_in_memory(Collective const& world, WeightCells const& cells, MergeLayout const& layout,
                                      std::string const& operation) {
  ReplicaFinder const finder(cells, layout, operation);
  std::vector<std::uint64_t> mine;
  agree(world, operation, [&] {
    OwnDigests own(cells);
    finder.visit(own);
    mine = own.compute();
  });
  auto const all = world.all_gatherv(std::as_bytes(std::span(mine)));
  agree(world, operation, [&] {
    DigestComparison comparison(all, operation);
    finder.visit(comparison);
  });
}

}  // namespace crossrank::checkpoint
