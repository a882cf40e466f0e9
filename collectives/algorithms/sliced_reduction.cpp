#include "collectives/algorithms/sliced_reduction.hpp"

#include "collectives/algorithms/piecewise_gather.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::algorithms {
namespace {

using spi::OpKind;

/// Below, one exchange of everything is quicker than two of parts.
constexpr std::size_t long_enough = std::size_t{16} << 10;

}  // namespace

std::vector<std::size_t> even_slices(std::size_t bytes, std::size_t element_bytes, int ranks) {
  auto const elements = bytes / element_bytes;
  auto const n = as_size(ranks);
  std::vector<std::size_t> slices;
  for (std::size_t rank = 0; rank < n; ++rank) {
    slices.push_back((elements / n + (rank < elements % n ? 1 : 0)) * element_bytes);
  }
  return slices;
}

SlicedReduction::SlicedReduction(Call const& call, spi::Transport const& transport)
    : call_(call),
      reduce_(reducer(call.reduction, call.name())),
      rank_(as_size(transport.rank())),
      slices_(call.signature.op_kind == OpKind::reduce_scatterv
                  ? call.counts
                  : even_slices(call.in.bytes.size(), reduce_.element_bytes, transport.world_size())),
      received_(slices_.size(), slices_[rank_]),
      exchanged_(slices_[rank_] * slices_.size()) {}

std::unique_ptr<Algorithm> SlicedReduction::make(Call const& call, spi::Transport& transport) {
  if (transport.world_size() == 1 || call.in.bytes.size() < long_enough) return nullptr;
  std::unique_ptr<SlicedReduction> algorithm(new SlicedReduction(call, transport));
  algorithm->first_ = transport.post_all_to_allv(call.noted(), call.in, algorithm->slices_,
                                                 {.bytes = algorithm->exchanged_}, algorithm->received_);
  if (!algorithm->first_) return nullptr;
  return algorithm;
}

void SlicedReduction::reduce_slice() {
  auto const slice = slices_[rank_];
  std::vector<std::byte const*> inputs;
  for (std::size_t rank = 0; rank < slices_.size(); ++rank) inputs.push_back(exchanged_.data() + rank * slice);
  auto* to = call_.out.bytes.data();
  if (call_.signature.op_kind == OpKind::all_reduce) to += offset_of(slices_, static_cast<int>(rank_));
  if (call_.signature.op_kind == OpKind::reduce) {
    result_.resize(slice);
    to = result_.data();
  }
  reduce_(to, inputs, slice);
}

std::optional<spi::RequestId> SlicedReduction::post_results(spi::Transport& transport) {
  if (call_.signature.op_kind == OpKind::reduce_scatterv) return {};
  if (call_.signature.op_kind == OpKind::all_reduce) {
    auto const own = call_.out.bytes.subspan(offset_of(slices_, static_cast<int>(rank_)), slices_[rank_]);
    return transport.post_all_gatherv(call_.noted(), {.bytes = own}, slices_, call_.out);
  }
  if (auto const request_id =
          transport.post_gatherv(call_.noted(), {.bytes = result_}, slices_, call_.out, call_.root)) {
    return request_id;
  }
  exchanged_.resize(call_.in.bytes.size());  // where there is no gatherv, others than the root see the results too
  auto const everywhere = call_.out.bytes.empty() ? spi::Sink{.bytes = exchanged_} : call_.out;
  return transport.post_all_gatherv(call_.noted(), {.bytes = result_}, slices_, everywhere);
}

std::optional<spi::RequestId> SlicedReduction::next(spi::Transport& transport) {
  switch (step_) {
    case Step::exchange: step_ = Step::results; return first_;
    case Step::results:
      step_ = Step::done;
      reduce_slice();
      return post_results(transport);
    case Step::done: break;
  }
  return {};
}

}  // namespace crossrank::algorithms
