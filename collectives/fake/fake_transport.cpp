#include "collectives/fake/fake_transport.hpp"

#include <algorithm>
#include <cstring>

#include <crossrank/error.hpp>

#include "collectives/spi/message_mismatch.hpp"
#include "collectives/spi/open_group.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::fake {
namespace {

constexpr std::size_t max_messages = 8;  // as deep as a channel of the shm backend
constexpr spi::RequestId done_at_once{0};

}  // namespace

FakeTransport::FakeTransport(std::string name) : name_(std::move(name)) {}

void FakeTransport::require_usable(char const* operation) const {
  spi::require_open_group(*this, operation, closed_);
  throw_if_aborted(operation);
}

void FakeTransport::throw_if_aborted(char const* operation) const {
  if (aborted_.empty()) return;
  throw PeerLostError({.operation = operation,
                       .message = aborted_,
                       .group = name_,
                       .rank = 0,
                       .world_size = 1,
                       .failed_ranks = {0},
                       .group_usable = false});
}

spi::RequestId FakeTransport::post_barrier(spi::Signature) {
  require_usable("barrier");
  return done_at_once;
}

spi::RequestId FakeTransport::post_broadcast(spi::Signature, spi::Sink, int) {
  require_usable("broadcast");
  return done_at_once;
}

spi::RequestId FakeTransport::post_all_gatherv(spi::Signature, spi::Source mine, std::span<std::size_t const>,
                                               spi::Sink out) {
  require_usable("all_gatherv");
  if (!mine.bytes.empty() && mine.bytes.data() != out.bytes.data())
    copy_memory(out.bytes.data(), mine.bytes.data(), mine.bytes.size());
  return done_at_once;
}

spi::RequestId FakeTransport::post_send(spi::Source bytes, int, std::uint32_t tag) {
  require_usable("send");
  if (messages_.size() == max_messages) {
    throw UsageError({.operation = "send",
                      .message = "too many messages of this rank to itself are unreceived",
                      .expected = "at most " + std::to_string(max_messages) + " messages not yet received",
                      .hint = "receive before sending more",
                      .group = name_,
                      .rank = 0,
                      .world_size = 1});
  }
  messages_.push_back({{bytes.bytes.begin(), bytes.bytes.end()}, tag});
  deliver();
  return done_at_once;
}

spi::RequestId FakeTransport::post_recv(spi::Sink bytes, int, std::uint32_t tag) {
  return post_receive({.sink = std::move(bytes), .tag = tag});
}

spi::RequestId FakeTransport::post_recv_any(spi::Sink bytes, std::uint32_t tag, std::shared_ptr<int> source) {
  return post_receive({.sink = std::move(bytes), .tag = tag, .source = std::move(source)});
}

spi::RequestId FakeTransport::post_receive(Receive receive) {
  require_usable(receive.name());
  auto const request_id = next_request_id_++;
  receives_.emplace(request_id, std::move(receive));
  return static_cast<spi::RequestId>(request_id);
}

void FakeTransport::take(Receive& receive) {
  auto const message = std::move(messages_.front());
  messages_.pop_front();
  if (receive.source) *receive.source = 0;
  if (message.bytes.size() == receive.sink.bytes.size() && message.tag == receive.tag) {
    copy_memory(receive.sink.bytes.data(), message.bytes.data(), message.bytes.size());
    return;
  }
  throw MessageMismatch({.operation = receive.name(), .group = name_, .rank = 0, .world_size = 1}, 0,
                        {receive.sink.bytes.size(), receive.tag}, {message.bytes.size(), message.tag});
}

void FakeTransport::deliver() {
  for (auto& [request_id, receive] : receives_) {
    if (receive.completed) continue;
    if (messages_.empty()) return;
    try {
      take(receive);
    } catch (...) {
      receive.failure = std::current_exception();  // thrown where that receive is tested or waited for
    }
    receive.completed = true;
  }
}

bool FakeTransport::test(spi::RequestId request_id) {
  auto const found = receives_.find(static_cast<std::uint64_t>(request_id));
  if (found == receives_.end()) return true;
  deliver();
  if (!found->second.completed) {
    require_usable(found->second.name());
    return false;
  }
  auto const failure = found->second.failure;
  receives_.erase(found);
  if (failure) std::rethrow_exception(failure);
  return true;
}

void FakeTransport::wait(spi::RequestId request_id, spi::TimeoutPolicy const&) {
  if (test(request_id)) return;
  auto const receive = receives_.extract(static_cast<std::uint64_t>(request_id));
  throw UsageError({.operation = receive.mapped().name(),
                    .message = "this receive would never end: the only rank of the group has sent no message",
                    .expected = "a send to this rank before the wait",
                    .hint = "send before receiving, or start more ranks",
                    .group = name_,
                    .rank = 0,
                    .world_size = 1});
}

// Everything but a receive ended when it was posted.
void FakeTransport::cancel(spi::RequestId request_id, std::string_view) noexcept {
  receives_.erase(static_cast<std::uint64_t>(request_id));
}

std::shared_ptr<spi::Transport> FakeTransport::split(spi::Signature, std::span<int const> members, std::string name,
                                                     spi::TimeoutPolicy const&) {
  require_usable("split");
  if (members.empty()) return nullptr;
  return std::make_shared<FakeTransport>(std::move(name));
}

void FakeTransport::abort(std::string_view why) noexcept {
  if (aborted_.empty()) aborted_ = why.empty() ? "the group was aborted" : std::string(why);
}

void FakeTransport::close(spi::TimeoutPolicy const&) {
  if (closed_) return;
  closed_ = true;
  throw_if_aborted("close");
}

}  // namespace crossrank::fake
