#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/message_queue/remote_link.hpp"

namespace crossrank::queue {

/// A message for readers on other nodes. They share one copy, which is kept until it has been sent to each of them.
using RemoteMessage = std::shared_ptr<std::vector<std::byte> const>;

/// The writer's endpoint towards one reader on another node.
class RemoteWriter {
 public:
  /// `reader`: its rank in the queue's group.
  RemoteWriter(Collective pair, int reader);
  RemoteWriter(RemoteWriter const&) = delete;
  RemoteWriter& operator=(RemoteWriter const&) = delete;

  [[nodiscard]] int reader() const noexcept { return reader_; }
  void put(std::uint64_t number, RemoteMessage const& message) noexcept;
  /// Announces that `messages` is the total number of messages.
  void end(std::uint64_t messages) noexcept;
  /// Tells the reader for which ranks of the job the writer waits. Valid until the next message.
  void report_waiting(std::vector<int> const& ranks) noexcept;
  /// Tells the reader why the queue has failed and that no message follows. Idempotent.
  void fail(node::RingFailure const& failure) noexcept;
  /// Processes the reader's answers.
  void advance() noexcept;
  /// Returns the number of messages that the reader has confirmed as taken.
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }
  /// Returns whether the reader has closed its endpoint.
  [[nodiscard]] bool closed() const noexcept { return closed_; }
  [[nodiscard]] bool lost() const noexcept { return !closed_ && !has_all() && (link_.lost() || reason_); }
  /// Returns the ranks that made the reader leave, if it has named them.
  [[nodiscard]] std::optional<node::RingFailure> const& reason() const noexcept { return reason_; }
  [[nodiscard]] int reader_global_rank() const noexcept { return link_.peer_global_rank(); }
  [[nodiscard]] std::string const& why() const noexcept { return link_.why(); }
  /// Returns whether the reader may still confirm the end.
  [[nodiscard]] bool awaits_end() const noexcept {
    return end_ != 0 && !failed_ && !has_all() && !closed_ && !link_.lost();
  }
  /// Returns whether the failure is still on its way to the reader.
  [[nodiscard]] bool sends_failure() const noexcept { return failed_ && !link_.idle() && !closed_ && !link_.lost(); }

 private:
  void send_failure(RemoteHeader::Kind kind, node::RingFailure const& failure) noexcept;
  /// Returns whether the reader has confirmed the end.
  [[nodiscard]] bool has_all() const noexcept { return end_ != 0 && taken_ >= end_; }

  int reader_;
  RemoteAck ack_{};
  std::uint64_t taken_ = 0;
  std::uint64_t end_ = 0;  ///< number of the end; 0 until it has been sent
  bool closed_ = false;
  bool failed_ = false;
  std::optional<node::RingFailure> reason_{};
  RemoteLink link_;  ///< the last member: it receives into `ack_` until it is gone
};

/// Waits until every reader has confirmed the end or received the failure, at most for `limit` in all: only the
/// endpoints of the writer hold the bytes of the pending messages.
void drain(std::span<std::unique_ptr<RemoteWriter> const> writers, std::chrono::nanoseconds limit) noexcept;

}  // namespace crossrank::queue
