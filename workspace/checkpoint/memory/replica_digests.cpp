#include "workspace/checkpoint/memory/replica_digests.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

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

/// A pair of replicas: numbers of their digests.
struct Comparison {
  std::string tensor{};
  std::vector<std::pair<std::size_t, std::size_t>> pairs{};
  bool must_differ = false;
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
    for (auto const& one : list_) {
      auto const rank = as_size(one.rank);
      std::uint64_t digest = 0;
      std::memcpy(&digest, all[rank].data() + sizeof digest * next[rank]++, sizeof digest);
      digests.push_back(digest);
    }
    for (auto const& comparison : comparisons_) {
      auto const different = std::find_if(comparison.pairs.begin(), comparison.pairs.end(), [&](auto const& pair) {
        return digests[pair.first] != digests[pair.second];
      });
      bool const differ = different != comparison.pairs.end();
      if (differ == comparison.must_differ) continue;
      auto const& pair = differ ? *different : comparison.pairs.front();
      refuse(comparison.tensor,
             differ ? "ranks hold different values of a tensor that must agree"
                    : "ranks hold the same bytes of a tensor that should be in pieces",
             {list_[pair.first].rank, list_[pair.second].rank},
             differ ? "synchronize the replicas, or pass placements that say how the tensor is sharded"
                    : "give a rule that says whether each rank holds all of it or a piece");
    }
  }

 private:
  [[noreturn]] void refuse(std::string const& tensor, std::string message, std::vector<int> ranks,
                           std::string hint) const {
    throw FormatError({.operation = operation_,
                       .message = std::move(message),
                       .got = "ranks " + std::to_string(ranks.front()) + " and " + std::to_string(ranks.back()),
                       .resource = tensor,
                       .hint = std::move(hint),
                       .failed_ranks = std::move(ranks),
                       .section = "data"});
  }

  void add_copies(CellSource const& cell) {
    for (std::size_t i = 0; i < cell.tensors().size(); ++i) {
      auto const& held = cell.held(i);
      auto const bytes = dense_bytes(cell.tensors()[i].shape, cell.tensors()[i].dtype);
      Comparison comparison{.tensor = cell.tensors()[i].name};
      for (auto const& box : held.boxes) {
        if (box.copies.size() < 2) continue;
        auto const first = list_.size();
        auto const width = box.copies.front().size();
        for (std::size_t copy = 0; copy < box.copies.size(); ++copy) {
          for (std::size_t part = 0; part < width; ++part) {
            if (copy > 0) comparison.pairs.emplace_back(first + part, list_.size());
            list_.push_back(
                {&held, &box, box.copies[copy].at(part), cell.own(i), {.run_bytes = bytes, .stride_bytes = bytes}});
          }
        }
      }
      if (!comparison.pairs.empty()) comparisons_.push_back(std::move(comparison));
    }
  }

  void add_replica(std::string const& name, ReplicaRuns const& replica) {
    auto const& kept_cell = *cells_.cells[replica.kept.source];
    auto const& other_cell = *cells_.cells[replica.other.source];
    auto const& kept = kept_cell.held(replica.kept.tensor);
    auto const& other = other_cell.held(replica.other.tensor);
    Comparison comparison{.tensor = name, .must_differ = replica.must_differ};
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
    for (std::size_t i = 0; i < kept.boxes.size(); ++i) {
      for (std::size_t part = 0; part < kept.boxes[i].copies.front().size(); ++part) {
        comparison.pairs.emplace_back(list_.size(), list_.size() + 1);
        list_.push_back({&kept, &kept.boxes[i], kept.boxes[i].copies.front()[part], kept_cell.own(replica.kept.tensor),
                         replica.runs});
        list_.push_back({&other, &other.boxes[i], other.boxes[i].copies.front()[part],
                         other_cell.own(replica.other.tensor), replica.runs});
      }
    }
    if (!comparison.pairs.empty()) comparisons_.push_back(std::move(comparison));
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
  std::vector<Digested> list_{};
  std::vector<Comparison> comparisons_{};
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
