#include "collectives/algorithms/generic_algorithms.hpp"

#include <string>

#include "collectives/algorithms/exchange_table.hpp"
#include "collectives/algorithms/piecewise_gather.hpp"
#include "collectives/algorithms/reduce.hpp"
#include "collectives/algorithms/sliced_reduction.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::algorithms {
namespace {

using spi::OpKind;

/// gatherv: all ranks receive everything, and the root keeps it.
class GenericGather final : public PiecewiseGather {
 public:
  explicit GenericGather(Call const& call) : PiecewiseGather(call.noted(), call.in.bytes), call_(call) {
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

/// scatterv: the root broadcasts everything, and each rank keeps its part.
class GenericScatter final : public Algorithm {
 public:
  GenericScatter(Call const& call, int rank)
      : call_(call), is_root_(rank == call.root), wanted_(offset_of(call.counts, rank)) {
    total_ = std::accumulate(call.counts.begin(), call.counts.end(), std::size_t{0});
  }

  std::optional<spi::RequestId> next(spi::Transport& transport) override {
    if (under_way_) {
      take_overlap(piece_, at_, wanted_, call_.out.bytes);
      at_ += piece_.size();
    }
    if (under_way_ && at_ >= total_) return {};
    under_way_ = true;
    auto const bytes = std::min(4 * piece_bytes, total_ - at_);
    scratch_.resize(is_root_ ? 0 : bytes);
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the root's bytes are only read
    piece_ = is_root_ ? std::span(const_cast<std::byte*>(call_.in.bytes.data()) + at_, bytes) : std::span(scratch_);
    return transport.post_broadcast(call_.noted(), {.bytes = piece_}, call_.root);
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

/// all_to_allv: the ranks first exchange their send counts. Then all receive everything and keep their parts.
class GenericExchange final : public PiecewiseGather {
 public:
  GenericExchange(Call const& call, spi::Transport const& transport)
      : PiecewiseGather(call.noted(), call.in.bytes),
        call_(call),
        rank_(transport.rank()),
        ranks_(as_size(transport.world_size())),
        name_(transport.name()),
        table_(ranks_) {}

  std::optional<spi::RequestId> next(spi::Transport& transport) override {
    if (row_.empty()) {
      row_ = ExchangeTable::row(call_.counts, call_.receive_counts);
      std::vector<std::size_t> const rows(ranks_, ExchangeTable::row_bytes(ranks_));
      return transport.post_all_gatherv(signature_, {.bytes = std::as_bytes(std::span(row_))}, rows,
                                        {.bytes = table_.bytes()});
    }
    if (!compared_) compare();
    return PiecewiseGather::next(transport);
  }

 private:
  void compare() {
    compared_ = true;
    if (auto const differs = table_.first_mismatch()) {
      throw differs->error(
          {.operation = "all_to_allv", .group = name_, .rank = rank_, .world_size = static_cast<int>(ranks_)});
    }
    std::vector<std::size_t> totals(ranks_);
    for (std::size_t from = 0; from < ranks_; ++from) {
      for (std::size_t to = 0; to < ranks_; ++to) totals[from] += table_.sends(from, to);
    }
    give(std::move(totals));
  }

  void take(std::size_t at, std::span<std::span<std::byte const> const> pieces) override {
    std::size_t part = 0;
    for (std::size_t from = 0; from < ranks_; ++from) {
      std::size_t wanted = 0;
      for (std::size_t to = 0; to < as_size(rank_); ++to) wanted += table_.sends(from, to);
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
  ExchangeTable table_;
  bool compared_ = false;
};

/// Reductions: all ranks receive everything and reduce the part that they keep.
class GenericReduction final : public PiecewiseGather {
 public:
  GenericReduction(Call const& call, spi::Transport const& transport)
      : PiecewiseGather(call.noted(), call.in.bytes),
        call_(call),
        reduce_(reducer(call.reduction, call.name())),
        kept_(call.signature.op_kind == OpKind::reduce_scatterv ? offset_of(call.counts, transport.rank()) : 0) {
    give(std::vector<std::size_t>(as_size(transport.world_size()), call.in.bytes.size()));
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

std::unique_ptr<Algorithm> generic_algorithm(Call const& call, spi::Transport& transport) {
  switch (call.signature.op_kind) {
    case OpKind::gatherv: return std::make_unique<GenericGather>(call);
    case OpKind::scatterv: return std::make_unique<GenericScatter>(call, transport.rank());
    case OpKind::all_to_allv: return std::make_unique<GenericExchange>(call, transport);
    default: break;
  }
  if (auto sliced = SlicedReduction::make(call, transport)) return sliced;
  return std::make_unique<GenericReduction>(call, transport);
}

}  // namespace crossrank::algorithms
