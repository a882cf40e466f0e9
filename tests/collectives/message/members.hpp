#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <crossrank/spi/packet_transport.hpp>

#include "collectives/message/failure_detector.hpp"
#include "collectives/message/group_link.hpp"
#include "collectives/message/mailboxes.hpp"
#include "collectives/message/payload_flow.hpp"
#include "collectives/message/rounds.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/support/memory_packet_transport.hpp"

/// The parts of `MessageTransport`, each driven by hand: all members are in this thread, and packets move when a test
/// says so.
namespace crossrank::test {

/// A packet transport that can be full.
class GatedPacketTransport final : public spi::PacketTransport {
 public:
  GatedPacketTransport(std::shared_ptr<MemoryHub> hub, int rank) : below_(std::move(hub), rank) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "gated"; }
  [[nodiscard]] int rank() const noexcept override { return below_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_.world_size(); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return false; }
  void send(int dst, std::vector<std::byte> packet) override {
    sent_to.insert(dst);
    below_.send(dst, std::move(packet));
  }
  [[nodiscard]] std::size_t unsent(int) const noexcept override { return full ? message::chunks_ahead : 0; }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override { return below_.receive(); }
  bool full = false;
  std::set<int> sent_to{};

 private:
  MemoryPacketTransport below_;
};

/// One member of a group, with all four parts.
class Member final : public message::PacketHandler {
 public:
  Member(std::shared_ptr<MemoryHub> const& hub, int rank) {
    auto transport = std::make_unique<GatedPacketTransport>(hub, rank);
    gate_ = transport.get();
    auto const members = all_ranks(hub->ranks());
    network_ = std::make_shared<message::Network>(std::move(transport));
    link_.emplace(network_, message::GroupIdentity{.number = 7, .name = "group", .members = members, .rank = rank});
    rounds_.emplace(*link_);
    flow_.emplace(*link_);
    mailboxes_.emplace(*link_);
    failures_.emplace(*link_, *rounds_);
    network_->attach(7, this);
  }
  Member(Member const&) = delete;
  Member& operator=(Member const&) = delete;
  /// Detaches first: the network hands out the last packets when it ends.
  ~Member() override { network_->detach(7); }

  [[nodiscard]] message::GroupLink const& link() { return *link_; }
  [[nodiscard]] message::Rounds& rounds() { return *rounds_; }
  [[nodiscard]] message::PayloadFlow& flow() { return *flow_; }
  [[nodiscard]] message::Mailboxes& mailboxes() { return *mailboxes_; }
  [[nodiscard]] message::FailureDetector& failures() { return *failures_; }
  void set_full(bool full) { gate_->full = full; }
  [[nodiscard]] std::set<int> const& sent_to() const { return gate_->sent_to; }
  /// Takes what has come and sends what can go.
  bool pump() { return network_->pump(); }

  void arrive(spi::Signature const& signature, message::Rounds::Part const& part) {
    note(rounds_->arrive(signature, part));
  }
  std::optional<message::PassedRound> passed_round{};  ///< of the last round that has passed; owns its payload
  std::optional<message::Disagreement> disagreement{};

 private:
  void note(std::optional<message::RoundOutcome> outcome) {
    if (!outcome) return;
    if (auto* const passed = std::get_if<message::PassedRound>(&*outcome)) {
      pass(std::move(*passed));
    } else {
      disagreement = std::get<message::Disagreement>(std::move(*outcome));
    }
  }
  void pass(message::PassedRound passed) {
    passed.storage.assign(passed.payload.begin(), passed.payload.end());
    passed.payload = passed.storage;
    rounds_->pass(passed.round);
    passed_round = std::move(passed);
    failures_->apply_deferred_failure_if_due();
  }

  void handle(int src, message::PacketHeader const& head, message::Bytes body) override {
    using message::PacketKind;
    auto const member = link_->member_of(src);
    failures_->note_moved();
    switch (head.kind) {
      case PacketKind::arrival: note(rounds_->take_arrival(member, head, body)); break;
      case PacketKind::passed: pass(message::Rounds::read_passed(head, body)); break;
      case PacketKind::flow: flow_->take(member, head.round, body, rounds_->passed()); break;
      case PacketKind::message: mailboxes_->take(member, head, body); break;
      case PacketKind::taken: mailboxes_->take_receipt(member); break;
      case PacketKind::failure: failures_->take_failure(head, body); break;
      case PacketKind::overdue: failures_->take_overdue(head); break;
      case PacketKind::gone: failures_->take_gone(member); break;
      case PacketKind::ping:
      case PacketKind::pong:
      case PacketKind::leaving: break;
    }
  }
  bool advance() override {
    bool const flowed = flow_->advance();
    return mailboxes_->advance() || flowed;
  }
  [[nodiscard]] message::Status status(std::uint64_t round) override { return failures_->status(round); }
  void rank_died(int, std::string const&) override {}

  GatedPacketTransport* gate_ = nullptr;
  std::shared_ptr<message::Network> network_{};
  std::optional<message::GroupLink> link_{};
  std::optional<message::Rounds> rounds_{};
  std::optional<message::PayloadFlow> flow_{};
  std::optional<message::Mailboxes> mailboxes_{};
  std::optional<message::FailureDetector> failures_{};
};

/// All members of a group.
class Members {
 public:
  explicit Members(int count) {
    for (int rank = 0; rank < count; ++rank) members_.push_back(std::make_unique<Member>(hub_of(count), rank));
  }
  [[nodiscard]] Member& operator[](int rank) { return *at_rank(members_, rank); }
  /// Moves packets until none is left.
  void deliver_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto const& member : members_) moved = member->pump() || moved;
    }
  }

 private:
  std::shared_ptr<MemoryHub> const& hub_of(int count) {
    if (!hub_) hub_ = std::make_shared<MemoryHub>(count);
    return hub_;
  }
  std::shared_ptr<MemoryHub> hub_{};
  std::vector<std::unique_ptr<Member>> members_{};
};

}  // namespace crossrank::test
