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

/// The end of a reader on another node than the writer. Memory grows with what arrives, whatever a message announces.
class RemoteReader {
 public:
  /// Messages longer than `chunk_bytes` may be kept without a copy.
  RemoteReader(Collective pair, std::size_t chunk_bytes);
  ~RemoteReader();
  RemoteReader(RemoteReader const&) = delete;
  RemoteReader& operator=(RemoteReader const&) = delete;

  /// Takes in what has come: whether the next message is there, whole.
  [[nodiscard]] bool has_message() noexcept;
  /// Whether the writer has closed and everything is taken.
  [[nodiscard]] bool at_end() const noexcept { return stage_ == Stage::ended; }
  /// Why no message will come: what the writer has said, or that it is lost.
  [[nodiscard]] std::optional<node::RingFailure> failure() const;
  /// Whom this end waits for, ranks of the job: the writer, or those for which the writer has said that it waits.
  [[nodiscard]] std::vector<int> waited_for() const;
  /// A call has timed out because of these ranks of the job: if this end goes away now, the writer is told so. Empty:
  /// this end goes on.
  void note_timeout(std::vector<int> ranks) noexcept { timed_out_for_ = std::move(ranks); }
  [[nodiscard]] std::string const& why() const noexcept { return link_.why(); }
  /// The next message; `has_message` has said yes. Readable until `take`.
  [[nodiscard]] std::span<std::byte const> peek() const noexcept { return *message_; }
  /// Keeps a long message beyond `take`; null for a short one.
  [[nodiscard]] std::shared_ptr<void const> keep() const noexcept;
  void take() noexcept;
  void close() noexcept;
  /// Messages taken.
  [[nodiscard]] std::uint64_t messages() const noexcept { return taken_; }

 private:
  enum class Stage { head, body, ready, ended, failed };

  void next_head() noexcept;
  void next_piece();
  void came();
  void receive_blame();
  void acknowledge(RemoteAck const& ack) noexcept;
  void finish_sending(std::chrono::nanoseconds drain_timeout) noexcept;

  RemoteLink link_;
  std::size_t chunk_bytes_;
  Stage stage_ = Stage::head;
  RemoteHeader head_{};
  std::shared_ptr<std::vector<std::byte>> message_{};
  node::RingFailure failure_{};  ///< at stage `failed`
  std::vector<int> writer_waits_for_{};
  std::vector<int> timed_out_for_{};
  std::uint64_t taken_ = 0;
  bool closed_ = false;
};

}  // namespace crossrank::queue
