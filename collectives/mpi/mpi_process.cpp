#include "collectives/mpi/mpi_process.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <string>
#include <utility>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "collectives/mpi/mpi_packet_transport.hpp"
#include "lib/platform/sigpipe_blocked.hpp"
#include "lib/platform/start_thread.hpp"

namespace crossrank::mpi {
namespace {

constexpr auto time_to_send_the_rest = std::chrono::seconds(1);

[[noreturn]] void throw_ranks_missing(char const* operation, char const* where, std::chrono::milliseconds limit) {
  throw TimeoutError(
      {.operation = operation,
       .message = std::string("not all ranks came to ") + where + " within " + std::to_string(limit.count()) + " ms",
       .hint = "check that every rank calls it in time, or raise the connect timeout",
       .group_usable = false});
}

}  // namespace

Process& Process::instance() {
  static NoDestructor<Process> process;  // MPI may end after statics are gone
  return process.value;
}

void Process::initialize(std::chrono::milliseconds limit) {
  std::lock_guard const lock(mutex_);
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0 && !start_) {
    require_initialized("connect");
    return;
  }
  if (initialised_here_) return require_initialized("connect");
  start(limit);  // goes on with an earlier call that timed out
  initialised_here_ = true;
  pid_ = ::getpid();
  std::atexit([] { on_exit(); });
}

/// MPI_Init waits for all ranks of the job without a limit. A separate thread calls it, and is abandoned if they do not
/// come.
void Process::start(std::chrono::milliseconds limit) {
  if (!start_) {
    auto const started = std::make_shared<Start>();
    platform::start_thread("connect", [started] {
      started->code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &started->provided);
      started->done.store(true, std::memory_order_release);  // pairs with the load below
    }).detach();
    start_ = started;
  }
  if (!spi::poll_until([&] { return start_->done.load(std::memory_order_acquire); }, limit))
    throw_ranks_missing("connect", "MPI_Init", limit);
  check(start_->code, "MPI_Init_thread");
  if (start_->provided >= MPI_THREAD_SERIALIZED) return;
  throw UnavailableError({.operation = "connect",
                          .message = "this MPI serves one thread only",
                          .expected = "MPI_THREAD_MULTIPLE or MPI_THREAD_SERIALIZED",
                          .hint = "call MPI_Init in the program, and crossrank::mpi::connect in the same thread",
                          .group_usable = false});
}

void Process::require_initialized(char const* operation) {
  int initialized = 0;
  int finalized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (initialized != 0 && finalized == 0) return;
  throw UsageError({.operation = operation,
                    .message = finalized != 0 ? "MPI is finalized" : "MPI is not initialized",
                    .expected = "a call between MPI_Init and MPI_Finalize"});
}

/// MPI itself would end the whole job over MPI_COMM_NULL, and count the ranks of the other side in an
/// intercommunicator.
void Process::require_group(MPI_Comm communicator) {
  int between_groups = 0;
  bool const none = communicator == MPI_COMM_NULL;
  if (!none) check(MPI_Comm_test_inter(communicator, &between_groups), "MPI_Comm_test_inter");
  if (!none && between_groups == 0) return;
  throw UsageError(
      {.operation = "mpi::connect",
       .message = none ? "MPI_COMM_NULL has no ranks" : "an intercommunicator is not a group of ranks",
       .expected = "a communicator of one group, this rank among them",
       .hint = none ? "call it on the ranks of the communicator only" : "merge it with MPI_Intercomm_merge first"});
}

/// Releases the lock while it waits: ranks may connect over two communicators in two threads, in either order.
MPI_Comm Process::duplicate(MPI_Comm communicator, std::chrono::milliseconds limit,
                            std::unique_lock<std::mutex>& lock) {
  // MPI writes here if the others come late.
  static NoDestructor<std::deque<MPI_Comm>> late;  // MPI may end after statics are gone
  auto& own = late.value.emplace_back(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(communicator, &own, &request), "MPI_Comm_idup");
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided == MPI_THREAD_MULTIPLE) lock.unlock();
  auto const ended = [&] {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  };
  bool came = false;
  std::exception_ptr failure;
  try {
    came = spi::poll_until(ended, limit);
  } catch (...) {
    failure = std::current_exception();
  }
  if (!lock.owns_lock()) lock.lock();
  if (failure) std::rethrow_exception(failure);
  if (!came) {
    mark_rank_lost();
    throw_ranks_missing("connect", "the communicator", limit);
  }
  return own;
}

/// A communicator that is being opened. The lock is held at the begin and at the end.
class Process::Opening {
 public:
  Opening(Process& process, MPI_Comm communicator) : process_(process), communicator_(communicator) {
    process_.opening_.push_back(communicator);
  }
  ~Opening() {
    std::erase(process_.opening_, communicator_);
    process_.opening_ended_.notify_all();
  }
  Opening(Opening const&) = delete;
  Opening& operator=(Opening const&) = delete;

 private:
  Process& process_;
  MPI_Comm communicator_;
};

std::shared_ptr<spi::Network> Process::open(MPI_Comm communicator, std::chrono::milliseconds limit) {
  require_group(communicator);
  platform::SigpipeBlocked const blocked;
  std::unique_lock lock(mutex_);
  install_finalize_hook();
  // Another thread may be opening it. The ranks must make the same number of duplicates.
  auto const is_free = [&] { return std::ranges::find(opening_, communicator) == opening_.end(); };
  if (!opening_ended_.wait_for(lock, limit, is_free)) throw_ranks_missing("connect", "the communicator", limit);
  if (auto known = find(communicator)) return known;
  Opening const opening(*this, communicator);
  Duplicates duplicates{.own = duplicate(communicator, limit, lock)};
  check(MPI_Comm_set_errhandler(duplicates.own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  duplicates.callers = duplicate(communicator, limit, lock);
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&provided), "MPI_Query_thread");
  // A program that made MPI calls of its own beside ours would need MPI_THREAD_MULTIPLE.
  auto const threads = provided == MPI_THREAD_MULTIPLE || (initialised_here_ && provided == MPI_THREAD_SERIALIZED)
                           ? MpiPacketTransport::Threads::any
                       : provided == MPI_THREAD_SERIALIZED ? MpiPacketTransport::Threads::callers
                                                           : MpiPacketTransport::Threads::main_only;
  auto packets = std::make_unique<MpiPacketTransport>(duplicates.own, duplicates.callers, threads);
  auto const user = packets->lifetime();
  auto network = spi::make_network(std::move(packets));
  auto& opened = opened_.emplace_back(Opened{.duplicates = duplicates, .user = user, .network = network});
  check(MPI_Comm_set_attr(communicator, key_, &opened), "MPI_Comm_set_attr");
  return network;
}

std::shared_ptr<spi::Network> Process::find(MPI_Comm communicator) const {
  Opened const* opened = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(communicator, key_, static_cast<void*>(&opened), &found), "MPI_Comm_get_attr");
  return found == 0 ? nullptr : opened->network;
}

/// MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF, while MPI still works.
void Process::install_finalize_hook() {
  if (key_ != MPI_KEYVAL_INVALID) return;
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Process::on_finalize, &key, nullptr), "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Process::on_free, &key_, nullptr), "MPI_Comm_create_keyval");
}

/// Ends the network of a communicator that the program frees. Groups that the program has not dropped keep it.
void Process::release(Opened const* opened) {
  std::list<Opened> released;
  {
    std::lock_guard const lock(mutex_);
    auto const found = std::ranges::find_if(opened_, [&](Opened const& one) { return &one == opened; });
    if (found == opened_.end()) return;  // MPI is about to end
    released.splice(released.end(), opened_, found);
  }
  auto& [duplicates, user, network] = released.front();
  std::weak_ptr<spi::Network> const orphan = network;
  if (network.use_count() == 1) network->stop(lost_.load() ? std::chrono::milliseconds(0) : time_to_send_the_rest);
  network.reset();
  std::lock_guard const lock(mutex_);
  std::erase_if(orphans_, [](auto const& known) { return known.expired(); });
  orphans_.push_back(orphan);
  platform::SigpipeBlocked const blocked;
  if (!lost_.load()) free_together(duplicates, user, time_to_send_the_rest);
}

void Process::end_networks() noexcept {
  auto const limit = lost_.load() ? std::chrono::milliseconds(0) : time_to_send_the_rest;
  for (auto const& opened : std::exchange(opened_, {})) opened.network->stop(limit);
  for (auto const& orphan : std::exchange(orphans_, {})) {
    if (auto const network = orphan.lock()) network->stop(limit);
  }
}

/// All ranks of the communicator are in MPI_Comm_free.
int Process::on_free(MPI_Comm, int, void* opened, void*) noexcept {
  try {
    instance().release(static_cast<Opened const*>(opened));
  } catch (std::exception const&) {  // the duplicates stay until MPI ends
  }
  return MPI_SUCCESS;
}

int Process::on_finalize(MPI_Comm, int, void*, void*) noexcept {
  instance().end_networks();
  return MPI_SUCCESS;
}

void Process::on_exit() noexcept {
  auto& process = instance();
  if (process.pid_ != ::getpid()) return;  // a forked child would wait in MPI_Finalize forever
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  // MPI_Finalize waits for all ranks without a limit.
  for (auto const& opened : process.opened_) {
    if (!process.lost_.load()) opened.network->await_others();
  }
  process.end_networks();
  if (!process.lost_.load()) MPI_Finalize();
}

}  // namespace crossrank::mpi
