#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include <crossrank/export.hpp>

namespace crossrank::spi {

/// A packet that has arrived.
struct ReceivedPacket {
  int src = 0;                      ///< the rank that has sent it
  std::vector<std::byte> packet{};  ///< its bytes
};

/// The interface that a network backend implements: packets between the ranks of a job, in order for each pair.
///
/// The library builds rounds, messages, timeouts and groups from packets, in the same way for all such backends. No
/// member blocks. The library makes one call at a time, from any thread that `may_use_threads` allows. A failure of the
/// network is a `BackendError` with the vendor's code and text.
class CROSSRANK_EXPORT PacketTransport {
 public:
  /// Releases the resources of the network.
  virtual ~PacketTransport() = default;

  /// Returns the backend's name.
  [[nodiscard]] virtual std::string_view backend() const noexcept = 0;
  /// Returns this rank's number in the job.
  [[nodiscard]] virtual int rank() const noexcept = 0;
  /// Returns the number of ranks in the job.
  [[nodiscard]] virtual int world_size() const noexcept = 0;
  /// Returns whether a thread of the library may make calls besides the caller's thread. A rank then answers its peers
  /// while it computes.
  [[nodiscard]] virtual bool may_use_threads() const noexcept = 0;
  /// Takes over a packet for `dst`, which is another rank.
  virtual void send(int dst, std::vector<std::byte> packet) = 0;
  /// Returns the number of packets to `dst` that the transport has taken over and not sent yet.
  [[nodiscard]] virtual std::size_t unsent(int dst) const noexcept = 0;
  /// Takes the next packet that has arrived from any rank. Returns nothing when there is none.
  [[nodiscard]] virtual std::optional<ReceivedPacket> receive() = 0;
  /// Returns the vendor's group of all ranks for the caller's own use, or null. The library does not communicate
  /// through it.
  [[nodiscard]] virtual void* native_group() noexcept { return nullptr; }
  /// Reports that a rank is lost or does not answer. From then on the transport must not wait for all ranks.
  virtual void note_lost_rank() noexcept {}
};

}  // namespace crossrank::spi
