#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <crossrank/mpi.hpp>
#include <crossrank/spi/packet_transport.hpp>

#include "lib/core/at_rank.hpp"

namespace crossrank::mpi {

/// Throws a `BackendError` if an MPI function returned an error.
void check(int code, char const* function);

/// Sends packets by non-blocking point-to-point calls on a communicator of its own.
class MpiPacketTransport final : public spi::PacketTransport {
 public:
  enum class Threads { any, callers, main_only };

  /// Takes over `communicator`, on which errors are returned. `callers` has the same ranks and is for the program.
  MpiPacketTransport(MPI_Comm communicator, MPI_Comm callers, Threads threads);
  ~MpiPacketTransport() override;
  MpiPacketTransport(MpiPacketTransport const&) = delete;
  MpiPacketTransport& operator=(MpiPacketTransport const&) = delete;

  [[nodiscard]] std::string_view backend() const noexcept override { return "mpi"; }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world_size() const noexcept override { return static_cast<int>(sends_.size()); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return threads_ == Threads::any; }
  void send(int dst, std::vector<std::byte> packet) override;
  [[nodiscard]] std::size_t unsent(int dst) const noexcept override { return at_rank(sends_, dst).size(); }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override;
  [[nodiscard]] void* native_group() noexcept override { return &callers_; }
  void note_lost_rank() noexcept override;
  /// Returns what expires when the packet transport has made its last MPI call.
  [[nodiscard]] std::weak_ptr<void const> lifetime() const noexcept { return lifetime_; }

 private:
  struct Transfer {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> packet{};
    int peer = 0;
    bool done = false;
  };
  void require_thread() const;
  void reap();
  void accept();

  std::shared_ptr<char const> lifetime_ = std::make_shared<char const>();  // the last one to go
  MPI_Comm communicator_;
  MPI_Comm callers_;
  Threads threads_;
  int rank_ = 0;
  std::vector<std::deque<Transfer>> sends_;  ///< by receiver, in order: MPI reads these buffers
  std::vector<int> sending_to_{};            ///< receivers whose deque is not empty
  std::deque<Transfer> receives_{};          ///< in the order of arrival
};

}  // namespace crossrank::mpi
