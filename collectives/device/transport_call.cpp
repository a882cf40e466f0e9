#include "collectives/device/transport_call.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <crossrank/spi/device_provider.hpp>

#include "collectives/algorithms/exchange_table.hpp"
#include "collectives/spi/argument_digest.hpp"
#include "lib/core/as_size.hpp"
#include "lib/device/cuda/capture.hpp"

namespace crossrank::device {
namespace {

using algorithms::Call;
using algorithms::ExchangeTable;
using spi::OpKind;

/// Turns `agreement` into an exchange of the numbers of bytes that each rank sends and expects. A device transport does
/// not compare them: with different ones it waits forever.
void exchange_counts(Call& agreement, Call const& call, spi::DevicePlace const& place) {
  struct Counts {
    std::vector<std::uint64_t> row;
    ExchangeTable table;
  };
  auto const ranks = as_size(place.ranks);
  auto counts = std::make_shared<Counts>(
      Counts{.row = ExchangeTable::row(call.counts, call.receive_counts), .table = ExchangeTable(ranks)});
  agreement.host_part = Call::HostPart::exchange_of_counts;
  agreement.in = {.bytes = std::as_bytes(std::span(counts->row)), .owner = counts};
  agreement.out = {.bytes = counts->table.bytes(), .owner = counts};
  agreement.counts.assign(ranks, ExchangeTable::row_bytes(ranks));
  agreement.unpack = [counts = counts.get(), name = call.name(), rank = place.rank, ranks = place.ranks] {
    if (auto const differs = counts->table.first_mismatch())
      throw differs->error({.operation = name, .rank = rank, .world_size = ranks});
  };
}

}  // namespace

TransportCall::TransportCall(Call const& call, Comparison comparison, std::shared_ptr<WatchedTransport> transport,
                             Stream stream)
    : call_(call),
      comparison_(comparison),
      transport_(std::move(transport)),
      stream_(std::move(stream)),
      scratch_(transport_->make_scratch(call, stream_)),
      position_(call.name(), transport_->name()) {}

Call TransportCall::on_host(std::chrono::milliseconds) {
  Call agreement{.signature = call_.signature, .arguments = call_.arguments, .called = call_.name()};
  if (cuda::Capture::of(stream_) != nullptr) {
    constexpr std::uint64_t captured = 1;  // on all ranks or on none
    agreement.signature.digest = ArgumentDigest().add(agreement.signature.digest).add(captured).value();
    agreement.arguments.text("in a capture");
  }
  if (comparison_ == Comparison::none || comparison_ == Comparison::in_table) {
    agreement.host_part = Call::HostPart::nothing;
  } else if (call_.signature.op_kind == OpKind::all_to_allv && !call_.is_even) {
    exchange_counts(agreement, call_, transport_->place());
  } else {
    agreement.host_part = Call::HostPart::comparison;
  }
  return agreement;
}

TransportCall::OnCompared TransportCall::hold() {
  if (comparison_ != Comparison::on_stream) return {};
  held_ = transport_->begin_comparison();
  // The group ends its comparisons before its transport, and must not live longer because of them.
  return [transport = std::weak_ptr(transport_), number = *held_](std::exception_ptr const& error) {
    if (auto const alive = transport.lock()) alive->end_comparison(number, error);
  };
}

void TransportCall::finish() {
  is_captured_ = cuda::Capture::of(stream_) != nullptr;
  if (comparison_ == Comparison::in_table) transport_->compare(call_);
  if (held_) transport_->hold(stream_, *held_);
  ended_ = transport_->enqueue(call_, stream_, scratch_.get());
  position_.release();
  auto& provider = spi::device_provider(stream_.device().kind);
  if (call_.in.owner) provider.keep_alive(stream_, call_.in.owner);
  if (call_.out.owner && call_.out.owner != call_.in.owner) provider.keep_alive(stream_, call_.out.owner);
}

}  // namespace crossrank::device
