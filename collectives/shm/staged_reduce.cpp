#include "collectives/shm/staged_reduce.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/core/as_size.hpp"
#include "lib/node/group/copy_batch.hpp"

namespace crossrank::shm {
StagedAllReduce::StagedAllReduce(node::NodeComm& comm, int rank, int ranks, spi::Source in, spi::Sink out,
                                 StoreMode results, algorithms::Reducer reduce)
    : comm_(comm),
      rank_(as_size(rank)),
      ranks_(as_size(ranks)),
      in_(std::move(in)),
      out_(std::move(out)),
      results_(results),
      reduce_(reduce),
      slice_(whole_lines((std::min(step_bytes, in_.bytes.size()) + ranks_ - 1) / ranks_)),
      piece_(slice_ * ranks_),
      pieces_((in_.bytes.size() + piece_ - 1) / piece_) {}

std::size_t StagedAllReduce::piece_size(std::size_t piece) const {
  return std::min(piece_, in_.bytes.size() - piece * piece_);
}

StagedAllReduce::Range StagedAllReduce::slice_of(std::size_t member, std::size_t piece) const {
  auto const all = piece_size(piece);
  // The last piece is shorter: its slices are shorter too, so that all have work.
  auto const slice = whole_lines((all + ranks_ - 1) / ranks_);
  auto const begin = std::min(member * slice, all);
  return {begin, std::min(slice, all - begin)};
}

void StagedAllReduce::put_values(std::size_t piece, Area area, node::CopyBatch& copies) const {
  auto const* const values = in_.bytes.data() + piece * piece_;
  auto const own = slice_of(rank_, piece);
  auto const behind = own.begin + own.bytes;
  copies.add(area.at, values, own.begin, area.stores);
  copies.add(area.at + behind, values + behind, piece_size(piece) - behind, area.stores);
}

void StagedAllReduce::reduce_slice(std::size_t piece, Area area, PeerAreas const& peers) {
  auto const own = slice_of(rank_, piece);
  if (own.bytes == 0) return;
  auto const at = piece * piece_ + own.begin;
  inputs_.resize(ranks_);
  for (std::size_t member = 0; member < ranks_; ++member) {
    inputs_[member] = member == rank_ ? in_.bytes.data() + at : peers.at(member, own.begin, own.bytes);
  }
  auto* const for_peers = area.at + piece_;
  if (out_.bytes.empty()) return reduce_(for_peers, inputs_, own.bytes);
  auto* const own_result = out_.bytes.data() + at;
  node::CopyBatch copies(comm_);
  // A reducer stores in the ordinary way, and so to where that is fast.
  if (area.stores == StoreMode::streaming) {
    reduce_(own_result, inputs_, own.bytes);
    copies.add(for_peers, own_result, own.bytes, area.stores);
  } else {
    reduce_(for_peers, inputs_, own.bytes);
    copies.add(own_result, for_peers, own.bytes, results_);
  }
  copies.run();
}

void StagedAllReduce::take_results(std::size_t piece, PeerAreas const& peers, node::CopyBatch& copies) const {
  if (out_.bytes.empty()) return;
  for (std::size_t member = 0; member < ranks_; ++member) {
    auto const slice = slice_of(member, piece);
    if (member == rank_ || slice.bytes == 0) continue;
    copies.add(out_.bytes.data() + piece * piece_ + slice.begin, peers.at(member, piece_, slice.bytes), slice.bytes,
               results_);
  }
}

bool StagedAllReduce::step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) {
  bool const more = number < pieces_ + 1;
  auto const area = more ? own.take(piece_ + slice_) : Area{};
  node::CopyBatch copies(comm_);
  if (number >= 2) take_results(number - 2, peers, copies);
  if (number < pieces_) put_values(number, area, copies);
  copies.run();
  if (number >= 1 && number - 1 < pieces_) reduce_slice(number - 1, area, peers);
  return more;
}

// ---------------------------------------------------------------- reduce_scatterv

StagedReduceScatter::StagedReduceScatter(node::NodeComm& comm, int rank, std::vector<std::size_t> counts,
                                         spi::Source in, spi::Sink out, algorithms::Reducer reduce)
    : comm_(comm),
      rank_(as_size(rank)),
      counts_(std::move(counts)),
      in_(std::move(in)),
      out_(std::move(out)),
      reduce_(reduce),
      longest_(std::max<std::size_t>(*std::max_element(counts_.begin(), counts_.end()), 1)),
      piece_(std::min(whole_lines(step_bytes / counts_.size()), whole_lines(longest_))) {}

bool StagedReduceScatter::step(std::size_t number, AreaAllocator& own, PeerAreas const& peers) {
  bool const more = number * piece_ < longest_;
  node::CopyBatch copies(comm_);
  if (more) put(number, own, copies);
  copies.run();
  if (number > 0) reduce(number - 1, peers);
  return more;
}

void StagedReduceScatter::put(std::size_t number, AreaAllocator& own, node::CopyBatch& copies) const {
  auto const area = own.take(counts_.size() * piece_);
  auto const begin = number * piece_;
  std::size_t part = 0;
  for (std::size_t member = 0; member < counts_.size(); ++member) {
    auto const bytes = begin >= counts_[member] ? 0 : std::min(piece_, counts_[member] - begin);
    if (member != rank_) copies.add(area.at + member * piece_, in_.bytes.data() + part + begin, bytes, area.stores);
    part += counts_[member];
  }
}

void StagedReduceScatter::reduce(std::size_t number, PeerAreas const& peers) {
  auto const begin = number * piece_;
  auto const count = counts_[rank_];
  if (begin >= count) return;
  auto const bytes = std::min(piece_, count - begin);
  auto const part =
      std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(rank_), std::size_t{0});
  inputs_.resize(counts_.size());
  for (std::size_t member = 0; member < counts_.size(); ++member) {
    inputs_[member] = member == rank_ ? in_.bytes.data() + part + begin : peers.at(member, rank_ * piece_, bytes);
  }
  reduce_(out_.bytes.data() + begin, inputs_, bytes);
}

}  // namespace crossrank::shm
