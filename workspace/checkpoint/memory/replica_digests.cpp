#include "workspace/checkpoint/memory/replica_digests.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
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

/// A pair of replicas, each of which has `count` digests that follow each other.
struct Comparison {
  std::string_view tensor{};
  std::size_t kept = 0;   ///< number of the first digest
  std::size_t other = 0;  ///< likewise
  std::size_t count = 0;
  bool must_differ = false;
};

/// The replica that others are compared with.
struct KeptReplica {
  TensorAt at{};
  StridedRuns runs{};
  std::size_t number = 0;  ///< of its first digest

  [[nodiscard]] bool is_of(ReplicaRuns const& other) const noexcept {
    auto const fields = [](StridedRuns const& of) {
      return std::tie(of.count, of.run_bytes, of.first_byte, of.stride_bytes);
    };
    return at == other.kept && fields(runs) == fields(other.runs);
  }
};

class ReplicaDigests {
 public:
  ReplicaDigests(WeightCells const& cells, MergeLayout const& layout, std::string const& operation)
      : cells_(cells), operation_(operation) {
    for (auto const& cell : cells.cells) add_copies(*cell);
    for (auto const& tensor : layout.tensors) {
      for (auto const& replica : tensor.replica_runs) add_replica(tensor.name, replica);
    }
  }

  /// Returns the digests of this rank's bytes, in the order of the list.
  [[nodiscard]] std::vector<std::uint64_t> own() const {
    std::vector<std::size_t> mine;
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (list_[i].rank != cells_.rank) continue;
      mine.push_back(i);
      bytes += list_[i].runs.bytes();
    }
    std::vector<std::uint64_t> digests(mine.size());
    codec::parallel_for(mine.size(), bytes, [&](std::size_t i) { digests[i] = digest_of(list_[mine[i]]); });
    return digests;
  }

  void compare(std::vector<std::vector<std::byte>> const& all) const {
    std::vector<std::size_t> next(all.size());
    std::vector<std::uint64_t> digests;
    digests.reserve(list_.size());
    for (auto const& one : list_) {
      auto const rank = as_size(one.rank);
      std::uint64_t digest = 0;
      std::memcpy(&digest, all[rank].data() + sizeof digest * next[rank]++, sizeof digest);
      digests.push_back(digest);
    }
    for (auto const& comparison : comparisons_) {
      std::size_t at = 0;
      while (at < comparison.count && digests[comparison.kept + at] == digests[comparison.other + at]) ++at;
      bool const differ = at < comparison.count;
      if (differ == comparison.must_differ) continue;
      if (!differ) at = 0;
      refuse(comparison.tensor,
             differ ? "ranks hold different values of a tensor that must agree"
                    : "ranks hold the same bytes of a tensor that should be in pieces",
             {list_[comparison.kept + at].rank, list_[comparison.other + at].rank},
             differ ? "synchronize the replicas, or pass placements that say how the tensor is sharded"
                    : "give a rule that says whether each rank holds all of it or a piece");
    }
  }

 private:
  [[noreturn]] void refuse(std::string_view tensor, std::string message, std::vector<int> ranks,
                           std::string hint) const {
    throw FormatError({.operation = operation_,
                       .message = std::move(message),
                       .got = "ranks " + std::to_string(ranks.front()) + " and " + std::to_string(ranks.back()),
                       .resource = std::string(tensor),
                       .hint = std::move(hint),
                       .failed_ranks = std::move(ranks),
                       .section = "data"});
  }

  void add_copies(CellSource const& cell) {
    for (std::size_t i = 0; i < cell.tensors().size(); ++i) {
      auto const& held = cell.held(i);
      auto const bytes = dense_bytes(cell.tensors()[i].shape, cell.tensors()[i].dtype);
      StridedRuns const all{.run_bytes = bytes, .stride_bytes = bytes};
      for (auto const& box : held.boxes) {
        if (box.copies.size() < 2) continue;
        auto const first = list_.size();
        for (auto const& copy : box.copies) {
          auto const number = list_.size();
          for (auto const rank : copy) list_.push_back({&held, &box, rank, cell.own(i), all});
          if (number > first) comparisons_.push_back({cell.tensors()[i].name, first, number, copy.size()});
        }
      }
    }
  }

  void add_replica(std::string_view name, ReplicaRuns const& replica) {
    auto const& kept = cells_.cells[replica.kept.source]->held(replica.kept.tensor);
    auto const& other = cells_.cells[replica.other.source]->held(replica.other.tensor);
    bool const alike = std::equal(kept.boxes.begin(), kept.boxes.end(), other.boxes.begin(), other.boxes.end(),
                                  [](auto const& a, auto const& b) {
                                    return a.box.begin == b.box.begin && a.box.size == b.box.size &&
                                           a.copies.front().size() == b.copies.front().size();
                                  });
    if (!alike) {
      refuse(name, "ranks shard replicas of a tensor differently",
             {kept.boxes.front().copies.front().front(), other.boxes.front().copies.front().front()},
             "use the same placements for all tensor-parallel ranks");
    }
    // The first of several replicas is compared with each of the others.
    if (!kept_ || !kept_->is_of(replica)) kept_ = {replica.kept, replica.runs, add_digests(replica.kept, replica.runs)};
    auto const number = add_digests(replica.other, replica.runs);
    if (list_.size() > number)
      comparisons_.push_back({name, kept_->number, number, list_.size() - number, replica.must_differ});
  }

  /// Adds the digests of the first copy of a tensor. Returns the number of the first one.
  std::size_t add_digests(TensorAt at, StridedRuns const& runs) {
    auto const number = list_.size();
    auto const& cell = *cells_.cells[at.source];
    auto const& held = cell.held(at.tensor);
    for (auto const& box : held.boxes) {
      for (auto const rank : box.copies.front()) list_.push_back({&held, &box, rank, cell.own(at.tensor), runs});
    }
    return number;
  }

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
  std::string const& operation_;
  // There may be hundreds of thousands. A vector would need memory for two lists while it grows.
  std::deque<Digested> list_{};
  std::deque<Comparison> comparisons_{};
  std::optional<KeptReplica> kept_{};  ///< the last one
};

}  // namespace

void require_equal_replicas_in_memory(Collective const& world, WeightCells const& cells, MergeLayout const& layout,
                                      std::string const& operation) {
  std::optional<ReplicaDigests> digests;
  std::vector<std::uint64_t> mine;
  agree(world, operation, [&] {
    digests.emplace(cells, layout, operation);
    mine = digests->own();
  });
  auto const all = world.all_gatherv(std::as_bytes(std::span(mine)));
  agree(world, operation, [&] { digests->compare(all); });
}

}  // namespace crossrank::checkpoint
