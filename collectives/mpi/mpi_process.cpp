#include "collectives/mpi/mpi_process.hpp"

#include <chrono>
#include <cstdlib>
#include <utility>

#include <crossrank/error.hpp>

namespace crossrank::mpi {
namespace {

constexpr auto time_to_send_the_rest = std::chrono::seconds(1);

}  // namespace

Process& Process::instance() {
  static auto* const process = new Process;  // never destroyed: MPI may end after statics are gone
  return *process;
}

void Process::need_mpi() {
  std::lock_guard const lock(mutex_);
  int initialised = 0;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  if (initialised != 0) {
    require_mpi("connect");
    return;
  }
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  initialised_here_ = true;
  std::atexit([] { on_exit(); });
}

void Process::require_mpi(char const* operation) {
  int initialised = 0;
  int finalized = 0;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (initialised != 0 && finalized == 0) return;
  throw UsageError({.operation = operation,
                    .message = finalized != 0 ? "MPI is finalised" : "MPI is not initialised",
                    .expected = "a call between MPI_Init and MPI_Finalize"});
}

std::shared_ptr<message::Network> Process::open(MPI_Comm communicator) {
  MPI_Comm own = MPI_COMM_NULL;
  check(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&provided), "MPI_Query_thread");
  std::lock_guard const lock(mutex_);
  // A program that made MPI calls of its own beside ours would need MPI_THREAD_MULTIPLE.
  auto const threads = provided == MPI_THREAD_MULTIPLE || (initialised_here_ && provided == MPI_THREAD_SERIALIZED)
                           ? MpiWire::Threads::any
                       : provided == MPI_THREAD_SERIALIZED ? MpiWire::Threads::callers
                                                           : MpiWire::Threads::main_only;
  auto network = spi::make_network(std::make_unique<MpiWire>(own, threads));
  networks_.push_back(network);
  hook();
  return network;
}

std::shared_ptr<message::Network> Process::world() {
  if (!world_) world_ = open(MPI_COMM_WORLD);
  return world_;
}

/// MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF, while MPI still works.
void Process::hook() {
  if (std::exchange(hooked_, true)) return;
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Process::on_finalize, &key, nullptr), "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
}

void Process::end_networks() noexcept {
  for (auto const& network : std::exchange(networks_, {})) {
    spi::stop_network(*network, lost_.load() ? std::chrono::milliseconds(0) : time_to_send_the_rest);
  }
}

int Process::on_finalize(MPI_Comm, int, void*, void*) noexcept {
  instance().end_networks();
  return MPI_SUCCESS;
}

void Process::on_exit() noexcept {
  auto& process = instance();
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  process.end_networks();
  if (!process.lost_.load()) MPI_Finalize();
}

}  // namespace crossrank::mpi
