#include "workspace/spanning_range.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/immortal.hpp"
#include "workspace/flat_publication.hpp"

namespace crossrank::workspace {
namespace {

using spi::Verb;

/// A second group for each group that has ranges: what ranges send must not meet the caller's messages.
struct Channels {
  struct Entry {
    std::weak_ptr<spi::Transport> of;
    std::shared_ptr<spi::Transport> channel;
  };
  std::mutex mutex;
  std::map<spi::Transport const*, Entry> all;
};

Channels& channels() {
  static Immortal<Channels> all;  // ranges may outlive statics
  return all.value;
}

/// Collective over the group the first time.
std::shared_ptr<spi::Transport> channel_of(std::shared_ptr<spi::Transport> const& transport,
                                           spi::Patience const& patience) {
  {
    std::lock_guard const lock(channels().mutex);
    std::erase_if(channels().all, [](auto const& entry) { return entry.second.of.expired(); });
    auto const found = channels().all.find(transport.get());
    if (found != channels().all.end()) return found->second.channel;
  }
  std::vector<int> everybody(static_cast<std::size_t>(transport->world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  auto channel = transport->split({.verb = Verb::split}, everybody, transport->name() + "/ranges", patience);
  std::lock_guard const lock(channels().mutex);
  channels().all[transport.get()] = {transport, channel};
  return channel;
}

template <std::size_t size>
void put(std::array<char, size>& to, std::string_view text) {
  text.copy(to.data(), size - 1);
}

}  // namespace

SpanningRange::SpanningRange(Parts parts)
    : parts_(std::move(parts)),
      group_(parts_.collective.transport()->node_group()),
      announced_(static_cast<std::size_t>(parts_.collective.world_size())),
      received_(parts_.members.size()) {}

bool SpanningRange::on_this_node(int member) const {
  auto const here = transport().node_ranks();
  return group_ != nullptr && std::binary_search(here.begin(), here.end(), member);
}

int SpanningRange::place_of(int member) const {
  auto const here = transport().node_ranks();
  return static_cast<int>(std::lower_bound(here.begin(), here.end(), member) - here.begin());
}

SpanningRange::Announced SpanningRange::publish(Contribution const& mine) {
  Announced said;
  auto const receiver = parts_.members.front();
  if (!parts_.files && !on_this_node(receiver)) {
    kept_ = flatten(mine);
    said.part.bytes = kept_.size();
    serves_ = true;
    return said;
  }
  node::Post post;
  parts_.medium->publish(mine, parts_.files ? receiver : place_of(receiver), post);
  said.part = Descriptor::of(post);
  return said;
}

void SpanningRange::open(Contribution const& mine, bool writes) {
  channel_ = channel_of(parts_.collective.transport(), parts_.patience);
  Announced own;
  std::exception_ptr failure;
  try {
    // Made here, not before: a directory that cannot be used is this rank's part that it could not do.
    if (parts_.make_medium) parts_.medium = parts_.make_medium();
    if (writes) own = publish(mine);
  } catch (std::exception const& e) {
    auto const* const known = dynamic_cast<Error const*>(&e);
    if (known != nullptr && !known->group_usable()) throw;
    failure = std::current_exception();
    own.failed = true;
    put(own.error_type, known == nullptr ? std::string("std::exception")
                                         : std::string("crossrank ") + to_string(known->code()) + " error");
    put(own.error_text, e.what());
    serves_ = false;
  }
  try {
    std::vector<std::size_t> const counts(announced_.size(), sizeof own);
    auto const ticket = transport().post_all_gatherv({Verb::range_open, parts_.digest, parts_.notes.bytes()},
                                                     {.bytes = std::as_bytes(std::span(&own, 1))}, counts,
                                                     {.bytes = std::as_writable_bytes(std::span(announced_))});
    transport().wait(ticket, parts_.patience);
    bool const failed = std::any_of(announced_.begin(), announced_.end(), [](auto const& said) { return said.failed; });
    if (failed) {
      serves_ = false;
      meet();
      if (failure) std::rethrow_exception(failure);
      throw_if_one_failed();
    }
  } catch (...) {
    if (parts_.medium) parts_.medium->give_up();
    throw;
  }
  if (parts_.members.front() == transport().rank()) user_code_ = std::make_unique<UserCode>(parts_.collective);
}

void SpanningRange::throw_if_one_failed() {
  ErrorInfo info{.operation = parts_.operation,
                 .group = transport().name(),
                 .rank = transport().rank(),
                 .world_size = transport().world_size()};
  for (std::size_t member = 0; member < announced_.size(); ++member) {
    auto const& said = announced_[member];
    if (!said.failed) continue;
    std::string const type(said.error_type.data());
    std::string const text(said.error_text.data());
    if (info.culprits.empty()) {
      info.remote_type = type;
      info.message = "rank " + std::to_string(member) + " could not do its part: " + text;
    }
    info.culprits.push_back(static_cast<int>(member));
    info.details.push_back("rank " + std::to_string(member) + ": " + type + ": " + text);
  }
  throw RemoteError(std::move(info));
}

void SpanningRange::receive(std::size_t index, Collector& collector) {
  auto const member = parts_.members[index];
  auto const& said = announced_[static_cast<std::size_t>(member)];
  received_[index] = true;
  if (!parts_.files && !on_this_node(member)) {
    receive_remote(member, said, collector);
    return;
  }
  parts_.medium->receive(parts_.files ? member : place_of(member), said.part, collector);
}

void SpanningRange::say(int member, Wish wish) {
  transport().keep_alive();
  channel_->wait(channel_->post_send({.bytes = std::as_bytes(std::span(&wish, 1))}, member, 1), parts_.patience);
}

void SpanningRange::receive_remote(int member, Announced const& said, Collector& collector) {
  auto bytes = std::make_shared<std::vector<std::byte>>(said.part.bytes);
  try {
    say(member, Wish::send);
    channel_->wait(channel_->post_recv({.bytes = *bytes, .owner = bytes}, member, 2), parts_.patience);
  } catch (Error const& e) {
    if (!e.group_usable()) transport().abort(e.what());
    throw;
  }
  unflatten(std::move(bytes), transport().global_ranks()[static_cast<std::size_t>(member)], collector);
}

/// A rank of another node than the receiver's: does as the receiver wishes, once.
void SpanningRange::serve() {
  auto wish = Wish::decline;
  auto const receiver = parts_.members.front();
  channel_->wait(channel_->post_recv({.bytes = std::as_writable_bytes(std::span(&wish, 1))}, receiver, 1),
                 parts_.patience);
  if (wish == Wish::send) channel_->wait(channel_->post_send({.bytes = kept_}, receiver, 2), parts_.patience);
}

void SpanningRange::meet() {
  transport().wait(transport().post_barrier({Verb::range_close, parts_.digest, parts_.notes.bytes()}), parts_.patience);
}

void SpanningRange::close() {
  user_code_.reset();
  try {
    bool const receives = parts_.members.front() == transport().rank();
    for (std::size_t index = 1; receives && index < parts_.members.size(); ++index) {
      auto const member = parts_.members[index];
      if (received_[index] || parts_.files || on_this_node(member)) continue;
      received_[index] = true;
      say(member, Wish::decline);
    }
    if (serves_) serve();
    meet();
  } catch (Error const& e) {
    if (!e.group_usable()) transport().abort(e.what());
    if (parts_.medium) parts_.medium->give_up();
    throw;
  }
  // What the receiver did not want of its own node is taken back: all have met.
  if (parts_.medium) {
    if (parts_.files) {
      parts_.medium->finish();
    } else {
      parts_.medium->give_up();
    }
  }
}

void SpanningRange::abort(std::string_view why) noexcept {
  user_code_.reset();
  transport().abort("rank " + std::to_string(transport().rank()) + ": " + std::string(why));
  channel_->abort(why);
  if (parts_.medium) parts_.medium->give_up();
}

}  // namespace crossrank::workspace
