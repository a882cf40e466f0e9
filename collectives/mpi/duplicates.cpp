#include "collectives/mpi/duplicates.hpp"

#include <cstddef>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/network.hpp>

#include "collectives/mpi/mpi_packet_transport.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank::mpi {
namespace {

constexpr int drain_tag = 1;  // packets have tag 0

/// The last messages on a communicator: each pair of ranks exchanges one when neither uses it any more. MPI delivers
/// the packets of a pair before it, so no packet is under way afterwards.
class CommunicatorDrain {
 public:
  CommunicatorDrain(Duplicates const& duplicates, std::weak_ptr<void const> user)
      : duplicates_(duplicates), user_(std::move(user)) {}
  /// Returns whether both communicators have been freed.
  [[nodiscard]] bool advance();
  /// Returns whether there is nothing to wait for: this rank still uses them, or an MPI call has failed.
  [[nodiscard]] bool is_stuck() const noexcept { return failed_ || !user_.expired(); }

 private:
  void start();
  [[nodiscard]] bool discard_packets();
  [[nodiscard]] bool try_advance();

  Duplicates duplicates_;
  std::weak_ptr<void const> user_;
  std::vector<char> messages_{};  ///< one for each rank
  std::vector<MPI_Request> requests_{};
  std::vector<std::byte> packet_{};
  MPI_Request receive_ = MPI_REQUEST_NULL;
  bool failed_ = false;  ///< MPI may still use the buffers
};

void CommunicatorDrain::start() {
  int rank = 0;
  int ranks = 0;
  check(MPI_Comm_rank(duplicates_.own, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(duplicates_.own, &ranks), "MPI_Comm_size");
  messages_ = per_rank<char>(ranks);
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    check(MPI_Irecv(&at_rank(messages_, peer), 1, MPI_CHAR, peer, drain_tag, duplicates_.own,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Irecv");
    check(MPI_Isend(&at_rank(messages_, rank), 1, MPI_CHAR, peer, drain_tag, duplicates_.own,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "MPI_Isend");
  }
}

bool CommunicatorDrain::advance() {
  if (is_stuck()) return false;
  try {
    return try_advance();
  } catch (BackendError const&) {  // the communicators stay until MPI ends
    failed_ = true;
    return false;
  }
}

bool CommunicatorDrain::try_advance() {
  if (messages_.empty()) start();
  int done = 0;
  check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
  if (done == 0 || !discard_packets()) return false;
  check(MPI_Comm_free(&duplicates_.own), "MPI_Comm_free");
  check(MPI_Comm_free(&duplicates_.callers), "MPI_Comm_free");
  return true;
}

/// Takes the packets that nobody has taken. MPI gives the number of a freed communicator to a new one, and would
/// deliver them there.
bool CommunicatorDrain::discard_packets() {
  for (;;) {
    int done = 0;
    check(MPI_Test(&receive_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return false;
    int found = 0;
    int bytes = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, duplicates_.own, &found, &message, &status), "MPI_Improbe");
    if (found == 0) return true;
    check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
    packet_.resize(as_size(bytes));
    check(MPI_Imrecv(packet_.data(), bytes, MPI_BYTE, &message, &receive_), "MPI_Imrecv");
  }
}

}  // namespace

void free_together(Duplicates const& duplicates, std::weak_ptr<void const> user, std::chrono::milliseconds limit) {
  static NoDestructor<std::list<CommunicatorDrain>> under_way;  // MPI may end after statics are gone
  auto const& own = under_way.value.emplace_back(duplicates, std::move(user));
  auto const has_ended = [&] {
    bool ended = own.is_stuck();
    std::erase_if(under_way.value, [&](CommunicatorDrain& one) {
      bool const freed = one.advance();
      ended = ended || (freed && &one == &own);
      return freed;
    });
    return ended;
  };
  static_cast<void>(spi::poll_until(has_ended, limit));
}

}  // namespace crossrank::mpi
