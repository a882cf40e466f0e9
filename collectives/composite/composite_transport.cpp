#include "collectives/composite/composite_transport.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/node/group.hpp"
#include "lib/node/rank_list.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::composite {
namespace {

using spi::Ticket;
using spi::Verb;

constexpr auto look_interval = std::chrono::milliseconds(50);
constexpr auto departed_for = std::chrono::milliseconds(200);  // whoever has closed the group may be gone sooner

}  // namespace

CompositeTransport::CompositeTransport(Parts parts, spi::Patience const& patience)
    : parts_(std::move(parts)), patience_(patience) {
  parts_.across->set_lookout([this] { look_out(); });
  parts_.bulk->set_lookout([this] { look_out(); });
}

CompositeTransport::~CompositeTransport() {
  parts_.across->set_lookout({});
  parts_.bulk->set_lookout({});
}

// ---------------------------------------------------------------- operations

Ticket CompositeTransport::keep(Operation operation) {
  auto const ticket = static_cast<Ticket>(next_ticket_++);
  operation.number = static_cast<std::uint64_t>(ticket);
  operations_.emplace(ticket, std::move(operation));
  return ticket;
}

void CompositeTransport::begin(Operation& op) {
  if (op.steps.empty()) {
    op.settled = true;
    return;
  }
  auto const& step = op.steps.front();
  try {
    op.ticket = step.post();
  } catch (Error const& e) {
    // Refused before anything was sent, unless bytes are already on their way.
    if (step.on == &across() && e.group_usable()) throw;
    end_with(step.on, spi::to_string(op.verb));
  }
  op.posted = true;
}

bool CompositeTransport::advance(Operation& op) {
  while (!op.settled) {
    auto* const on = op.steps.front().on;
    try {
      if (!on->test(op.ticket)) return false;
    } catch (Error const& e) {
      if (on == &across() && e.group_usable()) throw;
      end_with(on, spi::to_string(op.verb));
    }
    op.steps.pop_front();
    begin(op);
  }
  return true;
}

void CompositeTransport::complete(Operation& op, spi::Patience const& patience) {
  while (!op.settled) {
    auto* const on = op.steps.front().on;
    try {
      on->wait(op.ticket, patience);
    } catch (Error const& e) {
      if (on == &across() && e.group_usable()) throw;
      end_with(on, spi::to_string(op.verb));
    }
    // The step that has ended may add others behind itself.
    op.steps.pop_front();
    begin(op);
  }
}

Ticket CompositeTransport::post_steps(Operation operation) {
  if (!operation.message) settle_collectives();
  return begin_kept(keep(std::move(operation)));
}

Ticket CompositeTransport::begin_kept(Ticket ticket) {
  try {
    begin(operation(ticket));
  } catch (...) {
    operations_.erase(ticket);
    throw;
  }
  return ticket;
}

/// One collective at a time: its steps must come in the same order on all members.
void CompositeTransport::settle_collectives() {
  for (auto& [ticket, op] : operations_) {
    if (op.message || op.settled) continue;
    try {
      complete(op, patience_);
    } catch (...) {
      op.failure = std::current_exception();  // thrown where that operation is tested or waited for
      op.settled = true;
    }
  }
}

bool CompositeTransport::test(Ticket ticket) {
  auto& op = operation(ticket);
  try {
    if (!advance(op)) return false;
    if (op.failure) std::rethrow_exception(op.failure);
  } catch (...) {
    operations_.erase(ticket);
    throw;
  }
  operations_.erase(ticket);
  return true;
}

void CompositeTransport::wait(Ticket ticket, spi::Patience const& patience) {
  auto& op = operation(ticket);
  try {
    complete(op, patience);
    if (op.failure) std::rethrow_exception(op.failure);
  } catch (...) {
    operations_.erase(ticket);
    throw;
  }
  operations_.erase(ticket);
}

void CompositeTransport::cancel(Ticket ticket, std::string_view why) noexcept {
  auto const found = operations_.find(ticket);
  if (found == operations_.end()) return;
  auto& op = found->second;
  if (!op.settled) {
    auto const said = "rank " + std::to_string(rank()) + " cancelled its " + spi::to_string(op.verb);
    if (!op.message) abort(why.empty() ? said : why);
    op.steps.front().on->cancel(op.ticket);
  }
  operations_.erase(found);
}

// ---------------------------------------------------------------- messages

Ticket CompositeTransport::post_send(spi::Source bytes, int dst, std::uint32_t tag) {
  Operation op{.verb = Verb::send, .message = true};
  op.steps.push_back({&across(), [this, bytes, dst, tag] { return across().post_send(bytes, dst, tag); }});
  return post_steps(std::move(op));
}

Ticket CompositeTransport::post_recv(spi::Sink bytes, int src, std::uint32_t tag) {
  Operation op{.verb = Verb::recv, .message = true};
  op.steps.push_back({&across(), [this, bytes, src, tag] { return across().post_recv(bytes, src, tag); }});
  return post_steps(std::move(op));
}

// ---------------------------------------------------------------- failure

void CompositeTransport::look_out() {
  auto const group = node_group();
  auto const now = platform::system().now();
  if (!group || now - last_look_ < look_interval) return;
  last_look_ = now;
  std::vector<int> lost;
  auto const& members = parts_.map.members_of(parts_.map.own);
  for (int place = 0; place < group->size(); ++place) {
    if (place != group->rank() && group->domain().has_departed_slow(group->node_rank(place)))
      lost.push_back(members[static_cast<std::size_t>(place)]);
  }
  if (lost.empty()) {
    departed_since_ = std::chrono::nanoseconds(-1);
    return;
  }
  if (departed_since_.count() < 0) departed_since_ = now;
  if (now - departed_since_ < departed_for) return;
  auto const what = (lost.size() == 1 ? "rank " : "ranks ") + node::compress(lost) +
                    " did not arrive: " + group->domain().describe(group->node_rank(parts_.map.place_of(lost.front())));
  report_lost(lost, what);
}

void CompositeTransport::end_with(spi::Transport const* on, char const* operation) {
  try {
    throw;
  } catch (Error const& e) {
    auto const& info = e.info();
    std::vector<int> culprits;
    for (int const member : info.culprits) {
      bool const inside = on == parts_.local.get();
      auto const& members = parts_.map.members_of(parts_.map.own);
      if (!inside) culprits.push_back(member);
      if (inside && member < static_cast<int>(members.size()))
        culprits.push_back(members[static_cast<std::size_t>(member)]);
    }
    if (on != &across()) {
      // The part of a node speaks of its own ranks: say which those are here.
      auto const text =
          info.message + " (on the node of ranks " + node::compress(parts_.map.members_of(parts_.map.own)) + ")";
      if (culprits.empty()) culprits.push_back(rank());
      across().report_lost(culprits, text);
    }
    parts_.local->abort(info.message);
    parts_.bulk->abort(info.message);
  }
  // What `across` was told first is what all members throw.
  try {
    static_cast<void>(across().post_barrier({.verb = Verb::barrier}));
  } catch (Error const& e) {
    auto info = e.info();
    info.operation = operation;
    throw_error(e.code(), std::move(info));
  }
  throw PeerLostError({.operation = operation,
                       .message = "the group has failed",
                       .group = name(),
                       .rank = rank(),
                       .world_size = world_size(),
                       .group_usable = false});
}

void CompositeTransport::abort(std::string_view why) noexcept {
  across().abort(why);
  parts_.bulk->abort(why);
  parts_.local->abort(why);
}

void CompositeTransport::report_lost(std::span<int const> members, std::string_view why) noexcept {
  across().report_lost(members, why);
  parts_.bulk->report_lost(members, why);
}

void CompositeTransport::keep_alive() noexcept {
  across().keep_alive();
  parts_.local->keep_alive();
}

void CompositeTransport::enter_user_code(int change) noexcept {
  across().enter_user_code(change);
  parts_.local->enter_user_code(change);
}

// ---------------------------------------------------------------- groups

std::shared_ptr<spi::Transport> CompositeTransport::split(spi::Signature signature, std::span<int const> members,
                                                          std::string name, spi::Patience const& patience) {
  settle_collectives();
  try {
    auto group = across().split(signature, members, name, patience);
    std::vector<int> here;
    for (int const member : members) {
      if (parts_.map.node_of[static_cast<std::size_t>(member)] == parts_.map.own)
        here.push_back(parts_.map.place_of(member));
    }
    bool const one_node = here.size() == members.size();
    if (one_node && !members.empty()) {
      // Nobody waits for `across` in this group: it ends here, in order.
      group->close(patience);
      return parts_.local->split(signature, here, std::move(name), patience);
    }
    auto local = parts_.local->split(signature, here, name, patience);
    if (!group) return nullptr;
    auto map = NodeMap::meet(*group, patience);
    std::vector<int> all(members.size());
    std::iota(all.begin(), all.end(), 0);
    auto bulk = group->split({.verb = Verb::split}, all, name + "/bulk", patience);
    return std::make_shared<CompositeTransport>(
        Parts{.across = std::move(group), .bulk = std::move(bulk), .local = std::move(local), .map = std::move(map)},
        patience_);
  } catch (Error const& e) {
    if (e.group_usable()) throw;
    end_with(&across(), "split");
  }
}

void CompositeTransport::close(spi::Patience const& patience) {
  if (is_closed()) return;
  settle_collectives();
  try {
    across().close(patience);
    parts_.bulk->close(patience);
    parts_.local->close(patience);
  } catch (Error const& e) {
    parts_.bulk->abort(e.what());
    parts_.local->abort(e.what());
    throw;
  }
}

}  // namespace crossrank::composite
