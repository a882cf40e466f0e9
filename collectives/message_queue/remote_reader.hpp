#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/message_queue/remote_link.hpp"

namespace crossrank::queue {

/// The endpoint of a reader on another node than the writer. Allocates memory for data that arrives, not for announced
/// sizes.
class RemoteReader {
 public:
  /// Messages longer than `chunk_bytes` can be kept without a copy.
  RemoteReader(Collective pair, std::size_t chunk_bytes);
  ~RemoteReader();
  RemoteReader(RemoteReader const&) = delete;
  RemoteReader& operator=(RemoteReader const&) = delete;

  /// Processes received data. Returns whether the next message is complete.
  [[nodiscard]] bool has_message() noexcept;
  /// Returns whether the writer has closed and all messages are taken.
  [[nodiscard]] bool at_end() const noexcept { return stage_ == Stage::ended; }
  /// Returns why no message will arrive: the failure that the writer reported, or its loss.
  [[nodiscard]] std::optional<node::RingFailure> failure() const;
  /// Returns the ranks of the job for which this endpoint waits: the writer, or the ranks for which the writer reported
  /// to wait.
  [[nodiscard]] node::RingFailure waited_for() const;
  /// Records that a call has timed out because of these ranks of the job. If this endpoint goes away now, the writer is
  /// told. Without ranks, withdraws the record.
  void note_timeout(node::RingFailure blamed) noexcept { timed_out_for_ = std::move(blamed); }
  [[nodiscard]] std::string const& why() const noexcept { return link_.why(); }
  /// Returns the next message, valid until `take`. Requires that `has_message` returned true.
  [[nodiscard]] std::span<std::byte const> peek() const noexcept { return *message_; }
  /// Keeps a long message beyond `take`; null for a short one.
  [[nodiscard]] std::shared_ptr<void const> keep() const noexcept;
  void take() noexcept;
  void close() noexcept;
  /// Returns the number of messages taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return taken_; }

 private:
  enum class Stage { head, body, ready, ended, failed };

  void next_head() noexcept;
  void next_piece();
  void came();
  void receive_failure();
  void acknowledge(RemoteAck const& ack) noexcept;
  void finish_sending(std::chrono::nanoseconds drain_timeout) noexcept;

  std::size_t chunk_bytes_;
  Stage stage_ = Stage::head;
  RemoteHeader head_{};
  std::shared_ptr<std::vector<std::byte>> message_{};
  node::RingFailure failure_{};  ///< in stage `failed`
  node::RingFailure writer_waits_for_{};
  node::RingFailure timed_out_for_{};
  std::uint64_t taken_ = 0;
  bool closed_ = false;
  RemoteLink link_;  ///< the last member: it receives into the others until it is gone
};

}  // namespace crossrank::queue
