#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  [[nodiscard]] bool writer_lost() const noexcept { return stage_ != Stage::ready && !at_end() && link_.lost(); }
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
  enum class Stage { head, body, ready, ended };

  void next_head() noexcept;
  void next_piece();
  void came();
  void acknowledge(bool closed) noexcept;

  RemoteLink link_;
  std::size_t chunk_bytes_;
  Stage stage_ = Stage::head;
  RemoteHead head_{};
  std::shared_ptr<std::vector<std::byte>> message_{};
  std::uint64_t taken_ = 0;
  bool closed_ = false;
};

}  // namespace crossrank::queue
