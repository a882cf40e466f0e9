#include "collectives/mpi/mpi_packet_transport.hpp"

#include <array>
#include <limits>
#include <mutex>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "collectives/mpi/mpi_process.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/platform/sigpipe_blocked.hpp"

namespace crossrank::mpi {
namespace {

constexpr int packet_tag = 0;
constexpr std::size_t receives_at_once = 64;

}  // namespace

void check(int code, char const* function) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw BackendError({.operation = function,
                      .message = "an MPI call failed",
                      .got = "code " + std::to_string(code),
                      .system = std::string(text.data(), as_size(length)),
                      .group_usable = false});
}

MpiPacketTransport::MpiPacketTransport(MPI_Comm communicator, MPI_Comm callers, Threads threads)
    : communicator_(communicator), callers_(callers), threads_(threads) {
  int ranks = 0;
  check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator_, &ranks), "MPI_Comm_size");
  sends_.resize(as_size(ranks));
}

/// Buffers that MPI still reads or writes outlive the packet transport: MPI gives them back only when the peer takes
/// part.
MpiPacketTransport::~MpiPacketTransport() {
  if (sending_to_.empty() && receives_.empty()) return;
  static NoDestructor<std::vector<std::deque<Transfer>>> kept;  // MPI may end after statics are gone
  static constinit std::mutex guard;
  std::lock_guard const lock(guard);
  for (auto& sends : sends_) {
    if (!sends.empty()) kept.value.push_back(std::move(sends));
  }
  kept.value.push_back(std::move(receives_));
}

void MpiPacketTransport::require_thread() const {
  if (threads_ != Threads::main_only) return;
  int here = 0;
  check(MPI_Is_thread_main(&here), "MPI_Is_thread_main");
  if (here != 0) return;
  throw UsageError({.operation = "call",
                    .message = "MPI was initialized for calls from one thread only, and this is a different one",
                    .expected = "the thread that called MPI_Init",
                    .hint = "initialize with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE"});
}

void MpiPacketTransport::send(int dst, std::vector<std::byte> packet) {
  require_thread();
  if (packet.size() > as_size(std::numeric_limits<int>::max())) {
    throw BackendError({.operation = "MPI_Isend",
                        .message = "the packet is too long for an MPI count",
                        .got = std::to_string(packet.size()),
                        .group_usable = false});
  }
  platform::SigpipeBlocked const blocked;  // Open MPI 4.1 raises it when it writes to a rank that has died
  auto& sends = at_rank(sends_, dst);
  if (sends.empty()) sending_to_.push_back(dst);
  auto& transfer = sends.emplace_back(Transfer{.packet = std::move(packet), .peer = dst});
  // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): `reap` tests it until it has ended
  check(MPI_Isend(transfer.packet.data(), static_cast<int>(transfer.packet.size()), MPI_BYTE, dst, packet_tag,
                  communicator_, &transfer.request),
        "MPI_Isend");
  reap();
}

void MpiPacketTransport::reap() {
  std::erase_if(sending_to_, [this](int dst) {
    auto& sends = at_rank(sends_, dst);
    while (!sends.empty()) {
      int done = 0;
      check(MPI_Test(&sends.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) break;
      sends.pop_front();
    }
    return sends.empty();
  });
}

void MpiPacketTransport::accept() {
  while (receives_.size() < receives_at_once) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, packet_tag, communicator_, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return;
    int bytes = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    auto& transfer =
        receives_.emplace_back(Transfer{.packet = std::vector<std::byte>(as_size(bytes)), .peer = status.MPI_SOURCE});
    check(MPI_Imrecv(transfer.packet.data(), bytes, MPI_BYTE, &message, &transfer.request), "MPI_Imrecv");
  }
}

std::optional<spi::ReceivedPacket> MpiPacketTransport::receive() {
  require_thread();
  platform::SigpipeBlocked const blocked;
  reap();
  accept();
  for (auto at = receives_.begin(); at != receives_.end(); ++at) {
    if (!at->done) {
      int done = 0;
      check(MPI_Test(&at->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      at->done = done != 0;
    }
    if (!at->done) continue;
    // In order for each pair: an earlier one of the same sender goes first.
    bool first = true;
    for (auto earlier = receives_.begin(); earlier != at; ++earlier) first = first && earlier->peer != at->peer;
    if (!first) continue;
    std::optional<spi::ReceivedPacket> received({.src = at->peer, .packet = std::move(at->packet)});
    receives_.erase(at);
    return received;
  }
  return std::nullopt;
}

void MpiPacketTransport::note_lost_rank() noexcept { Process::instance().mark_rank_lost(); }

}  // namespace crossrank::mpi
