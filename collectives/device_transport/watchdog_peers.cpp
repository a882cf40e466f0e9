#include "collectives/device_transport/watchdog_peers.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/device_transport/rank_records.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/node/group/group.hpp"
#include "lib/platform/system.hpp"

namespace crossrank::device {
namespace {

constexpr std::uint32_t tag = 0x6e63;
/// How long a rank that leaves waits until the others know. Without a thread they look only during their calls.
constexpr auto leave_limit = std::chrono::seconds(5);
constexpr auto leave_limit_without_threads = std::chrono::seconds(1);

}  // namespace

WatchdogPeers::WatchdogPeers(std::shared_ptr<spi::Transport> transport, FindCall find_call)
    : transport_(std::move(transport)), find_call_(std::move(find_call)) {
  // The receives of the watchdog must not show up in `crossrank inspect` as waits for all other ranks.
  if (auto const group = node::group_of(transport_->node_memory())) group->leave_messages_unrecorded();
  auto const ranks = transport_->world_size();
  peers_.reserve(as_size(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != transport_->rank()) peers_.push_back({.rank = rank});
  }
  for (auto& peer : peers_) post_receive(peer);
}

WatchdogPeers::~WatchdogPeers() {
  for (auto& peer : peers_) {
    if (peer.receive) transport_->cancel(*std::exchange(peer.receive, std::nullopt));
  }
  for (auto const& sent : sent_) transport_->cancel(sent.request_id);
}

void WatchdogPeers::post_receive(Peer& peer) {
  peer.receive = transport_->post_recv({.bytes = std::as_writable_bytes(std::span(&peer.incoming, 1))}, peer.rank, tag);
}

void WatchdogPeers::send(int to, Note note) {
  auto& sent = sent_.emplace_back(Sent{.note = note});
  try {
    sent.request_id = transport_->post_send({.bytes = std::as_bytes(std::span(&sent.note, 1))}, to, tag);
  } catch (...) {
    sent_.pop_back();
    throw;
  }
}

void WatchdogPeers::drop_sent() {
  for (auto at = sent_.begin(); at != sent_.end();) {
    auto const request_id = at->request_id;
    bool ended = true;
    try {
      ended = transport_->test(request_id);
    } catch (...) {  // the id is invalid from then on
      sent_.erase(at);
      throw;
    }
    at = ended ? sent_.erase(at) : std::next(at);
  }
}

void WatchdogPeers::take(Peer& peer, Progress const& own) {
  auto const note = peer.incoming;
  if (note.kind == Kind::status_request) {
    auto const found = find_call_(note.progress.enqueued, note.call);
    auto const& blocked_by = found.blocked_by;
    Note answer{.kind = Kind::status_reply,
                .others_aborted = blocked_by.others_aborted,
                .has_conflicting_call = blocked_by.has_conflicting_call,
                .progress = own,
                .about = note.progress.enqueued,
                .call = blocked_by.ahead};
    blocked_by.text.copy(answer.text.data(), answer.text.size() - 1);
    found.text.copy(answer.asked.data(), answer.asked.size() - 1);
    return send(peer.rank, answer);
  }
  if (note.kind != Kind::status_reply && note.kind != Kind::departure) return;  // a peer wrote it
  peer.progress = note.progress;
  peer.has_left = peer.has_left || note.kind == Kind::departure;
  if (note.kind == Kind::status_reply && note.about != asked_about_) return;  // of an earlier question
  peer.has_answered = true;
  peer.known = {.text = string_of(note.asked),
                .blocked_by = {.ahead = note.call,
                               .text = string_of(note.text),
                               .others_aborted = note.others_aborted != 0,
                               .has_conflicting_call = note.has_conflicting_call != 0}};
}

void WatchdogPeers::poll(Progress const& own) {
  try {
    exchange_notes(own);
  } catch (Error const& e) {
    auto info = e.info();
    info.operation = watchdog_operation;  // the caller has made no recv
    throw_error(e.code(), std::move(info));
  }
}

void WatchdogPeers::exchange_notes(Progress const& own) {
  drop_sent();
  for (auto& peer : peers_) {
    while (peer.receive) {
      auto const request_id = *std::exchange(peer.receive, std::nullopt);
      if (!transport_->test(request_id)) {
        peer.receive = request_id;
        break;
      }
      take(peer, own);
      if (!peer.has_left) post_receive(peer);
    }
  }
}

void WatchdogPeers::ask(std::uint64_t sequence, CallId conflicting_call) {
  asked_about_ = sequence;
  for (auto& peer : peers_) {
    if (peer.has_left) continue;
    peer.has_answered = false;
    peer.known = {};
    send(peer.rank, {.kind = Kind::status_request, .progress = {.enqueued = sequence}, .call = conflicting_call});
  }
}

std::vector<int> WatchdogPeers::ranks_without(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (auto const& peer : peers_) {
    auto const begun = std::max(peer.progress.begun, peer.progress.enqueued);
    if (!peer.has_answered || begun < sequence) ranks.push_back(peer.rank);
  }
  return ranks;
}

std::vector<int> WatchdogPeers::all_ranks() const {
  std::vector<int> ranks(peers_.size() + 1);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> WatchdogPeers::ranks_before_start(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (auto const& peer : peers_) {
    if (peer.has_answered && peer.progress.started < sequence) ranks.push_back(peer.rank);
  }
  return ranks;
}

std::map<int, std::string> WatchdogPeers::calls() const {
  std::map<int, std::string> all;
  for (auto const& peer : peers_) {
    if (!peer.known.text.empty()) all.emplace(peer.rank, peer.known.text);
  }
  return all;
}

std::map<int, BlockingCall> WatchdogPeers::blocking_calls(BlockingCall own) const {
  std::map<int, BlockingCall> all;
  for (auto const& peer : peers_) all.emplace(peer.rank, peer.known.blocked_by);
  all.emplace(rank(), std::move(own));
  return all;
}

std::vector<int> WatchdogPeers::left_without(std::uint64_t sequence) const {
  std::vector<int> ranks;
  for (auto const& peer : peers_) {
    if (peer.has_left && peer.progress.enqueued < sequence) ranks.push_back(peer.rank);
  }
  return ranks;
}

void WatchdogPeers::blame(ErrorCode code, std::vector<int> const& ranks, std::string const& why) {
  transport_->report_failure(code, ranks, why);
}

void WatchdogPeers::leave(Progress const& own) noexcept {
  try {
    for (auto const& peer : peers_) {
      if (!peer.has_left) send(peer.rank, {.kind = Kind::departure, .progress = own});
    }
    auto& system = platform::system();
    auto const until = system.now() + (may_use_threads() ? leave_limit : leave_limit_without_threads);
    for (drop_sent(); !sent_.empty() && system.now() < until; drop_sent()) system.sleep(std::chrono::milliseconds(1));
  } catch (Error const&) {  // the group has failed: the others know more than that this rank leaves
  } catch (std::bad_alloc const&) {
  }
}

}  // namespace crossrank::device
