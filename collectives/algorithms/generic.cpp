#include "collectives/algorithms/generic.hpp"

#include <string>

#include <crossrank/error.hpp>

#include "collectives/algorithms/pieces.hpp"
#include "collectives/algorithms/reduce.hpp"
#include "collectives/algorithms/sliced_reduction.hpp"

namespace crossrank::algorithms {
namespace {

using spi::Verb;

/// The root keeps what all see.
class GenericGather final : public PiecewiseGather {
 public:
  explicit GenericGather(Call const& call) : PiecewiseGather(call.signature, call.in.bytes), call_(call) {
    give(call.counts);
  }

 private:
  void take(std::size_t at, std::span<std::span<std::byte const> const> pieces) override {
    if (call_.out.bytes.empty()) return;
    for (std::size_t rank = 0, part = 0; rank < pieces.size(); part += call_.counts[rank], ++rank) {
      take_overlap(pieces[rank], at, 0, call_.out.bytes.subspan(part, call_.counts[rank]));
    }
  }
  Call const& call_;
};

/// Each rank keeps its part of what the root tells all.
class GenericScatter final : public Plan {
 public:
  GenericScatter(Call const& call, int rank)
      : call_(call), is_root_(rank == call.root), wanted_(offset_of(call.counts, rank)) {
    total_ = std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0});
  }

  std::optional<spi::Ticket> next(spi::Transport& transport) override {
    if (under_way_) {
      take_overlap(piece_, at_, wanted_, call_.out.bytes);
      at_ += piece_.size();
    }
    if (under_way_ && at_ >= total_) return {};
    under_way_ = true;
    auto const bytes = std::min(4 * piece_bytes, total_ - at_);
    scratch_.resize(is_root_ ? 0 : bytes);
    // The root's bytes are only read.
    piece_ = is_root_ ? std::span(const_cast<std::byte*>(call_.in.bytes.data()) + at_, bytes) : std::span(scratch_);
    return transport.post_broadcast(call_.signature, {.bytes = piece_}, call_.root);
  }

 private:
  Call const& call_;
  bool is_root_;
  std::size_t wanted_;
  std::size_t total_ = 0;
  std::size_t at_ = 0;
  bool under_way_ = false;
  std::vector<std::byte> scratch_;
  std::span<std::byte> piece_;
};

/// Each rank tells all how much it sends to whom, then all see everything and keep what is theirs.
class GenericExchange final : public PiecewiseGather {
 public:
  GenericExchange(Call const& call, spi::Transport const& transport)
      : PiecewiseGather(call.signature, call.in.bytes),
        call_(call),
        rank_(transport.rank()),
        ranks_(static_cast<std::size_t>(transport.world_size())),
        name_(transport.name()) {}

  std::optional<spi::Ticket> next(spi::Transport& transport) override {
    if (table_.empty()) {
      table_.resize(ranks_ * 2 * ranks_);
      row_.assign(call_.counts.begin(), call_.counts.end());
      row_.insert(row_.end(), call_.receive_counts.begin(), call_.receive_counts.end());
      std::vector<std::size_t> const rows(ranks_, 2 * ranks_ * sizeof(std::uint64_t));
      return transport.post_all_gatherv(signature_, {.bytes = std::as_bytes(std::span(row_))}, rows,
                                        {.bytes = std::as_writable_bytes(std::span(table_))});
    }
    if (!compared_) compare();
    return PiecewiseGather::next(transport);
  }

 private:
  [[nodiscard]] std::size_t sends(std::size_t from, std::size_t to) const { return table_[from * 2 * ranks_ + to]; }
  [[nodiscard]] std::size_t expects(std::size_t to, std::size_t from) const {
    return table_[to * 2 * ranks_ + ranks_ + from];
  }

  /// All ranks see the same table, so all find the same pair that disagrees.
  void compare() {
    compared_ = true;
    std::vector<std::size_t> totals(ranks_);
    for (std::size_t from = 0; from < ranks_; ++from) {
      for (std::size_t to = 0; to < ranks_; ++to) {
        totals[from] += sends(from, to);
        if (sends(from, to) != expects(to, from)) disagree(from, to);
      }
    }
    give(std::move(totals));
  }

  [[noreturn]] void disagree(std::size_t from, std::size_t to) const {
    throw MismatchError({.operation = "all_to_allv",
                         .message = "rank " + std::to_string(from) + " sends another number of bytes than rank " +
                                    std::to_string(to) + " expects of it",
                         .expected = std::to_string(expects(to, from)),
                         .got = std::to_string(sends(from, to)),
                         .group = name_,
                         .rank = rank_,
                         .world_size = static_cast<int>(ranks_),
                         .culprits = {static_cast<int>(from), static_cast<int>(to)}});
  }

  void take(std::size_t at, std::span<std::span<std::byte const> const> pieces) override {
    std::size_t part = 0;
    for (std::size_t from = 0; from < ranks_; ++from) {
      std::size_t wanted = 0;
      for (std::size_t to = 0; to < static_cast<std::size_t>(rank_); ++to) wanted += sends(from, to);
      auto const bytes = call_.receive_counts[from];
      take_overlap(pieces[from], at, wanted, call_.out.bytes.subspan(part, bytes));
      part += bytes;
    }
  }

  Call const& call_;
  int rank_;
  std::size_t ranks_;
  std::string name_;
  std::vector<std::uint64_t> row_;
  std::vector<std::uint64_t> table_;  ///< by rank: what it sends to each, what it expects of each
  bool compared_ = false;
};

/// All see everything, and reduce the part that they keep.
class GenericReduction final : public PiecewiseGather {
 public:
  GenericReduction(Call const& call, spi::Transport const& transport)
      : PiecewiseGather(call.signature, call.in.bytes),
        call_(call),
        reduce_(reducer(call.reduction, call.name())),
        kept_(call.signature.verb == Verb::reduce_scatterv ? offset_of(call.counts, transport.rank()) : 0) {
    give(std::vector<std::size_t>(static_cast<std::size_t>(transport.world_size()), call.in.bytes.size()));
  }

 private:
  void take(std::size_t at, std::span<std::span<std::byte const> const> pieces) override {
    auto const common = overlap(at, pieces.front().size(), kept_, call_.out.bytes.size());
    if (common.empty()) return;
    std::vector<std::byte const*> inputs;
    for (auto const piece : pieces) inputs.push_back(piece.data() + (common.begin - at));
    reduce_(call_.out.bytes.data() + (common.begin - kept_), inputs, common.size());
  }

  Call const& call_;
  Reducer reduce_;
  std::size_t kept_;
};

}  // namespace

std::unique_ptr<Plan> generic_plan(Call const& call, spi::Transport& transport) {
  switch (call.signature.verb) {
    case Verb::gatherv: return std::make_unique<GenericGather>(call);
    case Verb::scatterv: return std::make_unique<GenericScatter>(call, transport.rank());
    case Verb::all_to_allv: return std::make_unique<GenericExchange>(call, transport);
    default: break;
  }
  if (auto sliced = SlicedReduction::make(call, transport)) return sliced;
  return std::make_unique<GenericReduction>(call, transport);
}

}  // namespace crossrank::algorithms
