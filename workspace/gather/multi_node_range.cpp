#include "workspace/gather/multi_node_range.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/group_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/spi/error_in.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/error_record.hpp"
#include "lib/node/group/group.hpp"
#include "workspace/gather/packed_contribution.hpp"

namespace crossrank::workspace {
namespace {

using spi::OpKind;

/// Returns the channel of the group's ranges. It has a transport of its own, so that its messages do not mix with those
/// of the caller. Collective on the first call.
std::shared_ptr<RangeChannel> channel_of(Collective const& group, char const* operation,
                                         spi::TimeoutPolicy const& timeout_policy) {
  auto& state = detail::NamedCalls(group, operation).state();
  if (!state.range_channel) {
    auto& transport = *state.transport;
    state.range_channel = std::make_shared<RangeChannel>(transport.split(
        {.op_kind = OpKind::split}, all_ranks(transport.world_size()), transport.name() + "/ranges", timeout_policy));
  }
  return std::static_pointer_cast<RangeChannel>(state.range_channel);
}

}  // namespace

MultiNodeRange::MultiNodeRange(RangeInputs inputs)
    : inputs_(std::move(inputs)),
      group_(node::group_of(inputs_.collective.transport()->node_memory())),
      open_messages_(as_size(inputs_.collective.world_size())),
      received_(inputs_.members.size()) {}

MultiNodeRange::~MultiNodeRange() {
  if (channel_) channel_->withdraw(range_);
}

bool MultiNodeRange::on_this_node(int member) const {
  auto const here = transport().node_ranks();
  return group_ != nullptr && std::binary_search(here.begin(), here.end(), member);
}

int MultiNodeRange::node_rank_of(int member) const {
  auto const here = transport().node_ranks();
  return static_cast<int>(std::lower_bound(here.begin(), here.end(), member) - here.begin());
}

MultiNodeRange::OpenMessage MultiNodeRange::publish(Contribution const& mine) {
  OpenMessage message;
  auto const receiver = inputs_.members.front();
  if (!inputs_.files && !on_this_node(receiver)) {
    kept_ = pack(mine);
    message.part.bytes = kept_.size();
    serves_ = true;
    return message;
  }
  node::Post post;
  inputs_.exchange->publish(mine, inputs_.files ? receiver : node_rank_of(receiver), post);
  message.part = ContributionDescriptor::of(post);
  return message;
}

void MultiNodeRange::open(Contribution const& mine, bool writes) {
  channel_ = channel_of(inputs_.collective, inputs_.operation, inputs_.timeout_policy);
  range_ = channel_->next_range();
  OpenMessage own;
  std::exception_ptr failure;
  try {
    // Created inside the try block: if the directory cannot be used, this rank reports it to the others.
    if (inputs_.make_exchange) inputs_.exchange = inputs_.make_exchange();
    if (inputs_.failure) std::rethrow_exception(inputs_.failure);
    if (writes) own = publish(mine);
    if (inputs_.members.front() == transport().rank()) require_sendable_config(mine);
  } catch (std::exception const&) {
    failure = std::current_exception();
    auto const record = describe_exception(failure);
    own.error_bytes = static_cast<std::uint32_t>(encode_error(fields_of(record.code, record.info), own.error));
    serves_ = false;
  }
  try {
    std::vector<std::size_t> const counts(open_messages_.size(), sizeof own);
    auto const request_id = transport().post_all_gatherv(
        {OpKind::range_open, inputs_.digest, inputs_.arguments.bytes()}, {.bytes = std::as_bytes(std::span(&own, 1))},
        counts, {.bytes = std::as_writable_bytes(std::span(open_messages_))});
    transport().wait(request_id, inputs_.timeout_policy);
    bool const failed =
        std::any_of(open_messages_.begin(), open_messages_.end(), [](auto const& message) { return message.failed(); });
    if (failed) {
      serves_ = false;
      close_round();
      if (auto const told = std::exchange(failure, nullptr)) std::rethrow_exception(told);
      throw_if_one_failed();
    }
    if (serves_) channel_->offer(range_, inputs_.members.front(), std::move(kept_));
  } catch (Error const& error) {
    if (inputs_.exchange) inputs_.exchange->discard();
    if (failure) throw_beside(failure, error);
    throw;
  } catch (...) {
    if (inputs_.exchange) inputs_.exchange->discard();
    throw;
  }
  if (inputs_.members.front() == transport().rank()) user_code_ = std::make_unique<UserCodeScope>(inputs_.collective);
}

void MultiNodeRange::throw_if_one_failed() {
  std::vector<RankError> errors;
  for (std::size_t member = 0; member < open_messages_.size(); ++member) {
    auto const& message = open_messages_[member];
    if (!message.failed()) continue;
    auto const bytes = std::min<std::size_t>(message.error_bytes, message.error.size());
    errors.push_back({.rank = static_cast<int>(member), .error = decode_error(std::span(message.error).first(bytes))});
  }
  throw remote_error(error_in(transport(), {.operation = inputs_.operation}), errors);
}

void MultiNodeRange::receive(std::size_t index, Collector& collector) {
  auto const member = inputs_.members[index];
  auto const& message = at_rank(open_messages_, member);
  if (!inputs_.files && !on_this_node(member)) return receive_remote(index, message.part.bytes, collector);
  received_[index] = true;
  try {
    inputs_.exchange->receive(inputs_.files ? member : node_rank_of(member), message.part, collector);
  } catch (Error const& e) {
    // It may name ranks by their places on this node. The last round ends with the error that all ranks get.
    if (!e.group_usable()) close_round();
    throw;
  }
}

void MultiNodeRange::send_choice(int member, RangeChannel::Choice choice) {
  transport().keep_alive();
  channel_->choose(member, range_, choice, inputs_.timeout_policy);
}

std::shared_ptr<std::vector<std::byte>> MultiNodeRange::allocate_for(int member, std::uint64_t bytes) const {
  try {
    return std::make_shared<std::vector<std::byte>>(bytes);
  } catch (std::exception const&) {  // std::bad_alloc or std::length_error
    throw UnavailableError(error_in(
        transport(), {.operation = inputs_.operation,
                      .message = "there is not enough memory for the tensors of rank " + std::to_string(member),
                      .expected = std::to_string(bytes) + " bytes",
                      .hint = "gather fewer tensors at once, or give the process more memory"}));
  }
}

void MultiNodeRange::receive_remote(std::size_t index, std::uint64_t size, Collector& collector) {
  auto const member = inputs_.members[index];
  auto bytes = allocate_for(member, size);
  received_[index] = true;  // from here on, the sender needs no other answer
  try {
    send_choice(member, RangeChannel::Choice::send);
    channel_->receive(member, bytes, inputs_.timeout_policy);
  } catch (Error const& e) {
    end_group(e);
    throw;
  }
  unpack(std::move(bytes), at_rank(transport().global_ranks(), member), collector);
}

/// Ends the group on all ranks for the reason of an error of the channel, which connects the same ranks.
void MultiNodeRange::end_group(Error const& e) noexcept {
  if (e.group_usable()) return;
  if (e.failed_ranks().empty()) {
    transport().abort(e.what());
  } else {
    transport().report_failure(e.code(), e.failed_ranks(), e.info().message);
  }
}

void MultiNodeRange::close_round() {
  transport().wait(transport().post_barrier({OpKind::range_close, inputs_.digest, inputs_.arguments.bytes()}),
                   inputs_.timeout_policy);
}

void MultiNodeRange::close() {
  user_code_.reset();
  try {
    bool const receives = inputs_.members.front() == transport().rank();
    for (std::size_t index = 1; receives && index < inputs_.members.size(); ++index) {
      auto const member = inputs_.members[index];
      if (received_[index] || inputs_.files || on_this_node(member)) continue;
      received_[index] = true;
      send_choice(member, RangeChannel::Choice::decline);
    }
    if (serves_) channel_->serve(range_, inputs_.timeout_policy);
    close_round();
  } catch (Error const& e) {
    end_group(e);
    if (inputs_.exchange) inputs_.exchange->discard();
    throw;
  }
  // All ranks have arrived, so contributions that the receiver did not take can be revoked.
  if (inputs_.exchange) {
    if (inputs_.files) {
      inputs_.exchange->finish();
    } else {
      inputs_.exchange->discard();
    }
  }
}

void MultiNodeRange::abort(std::string_view why) noexcept {
  user_code_.reset();
  inputs_.collective.abort(why);
  if (channel_) channel_->abort(why);
  if (inputs_.exchange) inputs_.exchange->discard();
}

}  // namespace crossrank::workspace
