#include "collectives/device_transport/rank_order_reduction.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>

#include <crossrank/spi/device_provider.hpp>

#include "collectives/algorithms/sliced_reduction.hpp"
#include "lib/core/as_size.hpp"

namespace crossrank::device {
namespace {

using algorithms::Call;
using spi::DeviceCollective;
using spi::OpKind;

/// Up to here, one exchange of everything is likely to be quicker than two of slices, which cost two launches more.
constexpr std::size_t short_bytes = std::size_t{16} << 10;

/// Returns a part of a call, named as the caller has called it.
DeviceCollective part_of(Call const& call, OpKind kind) {
  return {.op_kind = kind, .name = call.name(), .root = call.root};
}

}  // namespace

RankOrderReduction::RankOrderReduction(Call const& call, spi::DevicePlace const& place)
    : call_(call),
      ranks_(as_size(place.ranks)),
      element_bytes_(bits_of(call.reduction.dtype) / 8),
      goes_whole_(!scatters() && call.in.bytes.size() <= short_bytes),
      has_result_(call.signature.op_kind != OpKind::reduce || call.root == place.rank) {
  auto const bytes = call.in.bytes.size();
  if (goes_whole_) {
    slices_.assign(ranks_, bytes);
    own_ = has_result_ ? bytes : 0;
  } else {
    slices_ = scatters() ? call.counts : algorithms::even_slices(bytes, element_bytes_, place.ranks);
    own_ = slices_[as_size(place.rank)];
    if (!scatters()) offset_ = std::accumulate(slices_.begin(), slices_.begin() + place.rank, std::size_t{0});
  }
  incoming_.assign(ranks_, own_);
}

bool RankOrderReduction::scatters() const noexcept { return call_.signature.op_kind == OpKind::reduce_scatterv; }

std::byte* RankOrderReduction::own_place() const noexcept {
  return has_result_ ? call_.out.bytes.data() + offset_ : nullptr;
}

bool RankOrderReduction::needs_result_memory() const noexcept {
  return own_place() == nullptr || reinterpret_cast<std::uintptr_t>(own_place()) % element_bytes_ != 0;
}

std::size_t RankOrderReduction::scratch_bytes() const noexcept {
  return own_ * (ranks_ + (needs_result_memory() ? 1 : 0));
}

bool RankOrderReduction::is_carried_by(spi::DeviceTransport const& transport) const {
  auto const everywhere = [&](DeviceCollective const& one) {
    return transport.support_for(one) == spi::CollectiveSupport::full;
  };
  auto const rest = results(call_.out.bytes.data());
  return everywhere(exchange({})) && (!rest || everywhere(*rest));
}

DeviceCollective RankOrderReduction::exchange(std::span<std::byte> gathered) const {
  auto kind = OpKind::all_to_allv;
  if (goes_whole_) kind = call_.signature.op_kind == OpKind::reduce ? OpKind::gatherv : OpKind::all_gatherv;
  auto collective = part_of(call_, kind);
  collective.in = call_.in.bytes;
  collective.out = gathered;
  collective.counts = slices_;
  collective.receive_counts = incoming_;
  // All ranks have the same slices.
  collective.has_equal_parts =
      std::adjacent_find(slices_.begin(), slices_.end(), std::not_equal_to<>()) == slices_.end();
  return collective;
}

void RankOrderReduction::combine(Stream const& stream, std::byte const* values, std::byte* result) const {
  if (own_ == 0) return;
  auto& provider = spi::device_provider(stream.device().kind);
  provider.reduce(stream, {.to = result,
                           .inputs = values,
                           .stride_bytes = own_,
                           .elements = own_ / element_bytes_,
                           .ranks = static_cast<std::uint32_t>(ranks_),
                           .dtype = call_.reduction.dtype,
                           .op = call_.reduction.op});
  auto* const place = own_place();
  if (place == nullptr || place == result) return;
  provider.copy(
      stream,
      {.to = place, .to_device = stream.device(), .from = result, .from_device = stream.device(), .run_bytes = own_});
}

std::optional<DeviceCollective> RankOrderReduction::results(std::byte* own_result) const {
  if (goes_whole_ || scatters()) return {};
  auto collective = part_of(call_, call_.signature.op_kind == OpKind::reduce ? OpKind::gatherv : OpKind::all_gatherv);
  collective.in = {has_result_ ? own_place() : own_result, own_};
  collective.out = call_.out.bytes;
  collective.counts = slices_;
  return collective;
}

void RankOrderReduction::enqueue(spi::DeviceTransport& transport, Stream const& stream, std::byte* scratch,
                                 spi::DevicePollHook const& poll_hook) const {
  auto* const own_result = needs_result_memory() ? scratch + own_ * ranks_ : own_place();
  transport.enqueue(exchange({scratch, own_ * ranks_}), stream, poll_hook);
  combine(stream, scratch, own_result);
  if (auto const rest = results(own_result)) transport.enqueue(*rest, stream, poll_hook);
}

}  // namespace crossrank::device
