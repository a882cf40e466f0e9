#pragma once
#include <csignal>
#include <filesystem>
#include <functional>

#include <unistd.h>

#include <crossrank/collective.hpp>

/// What ranks do over and over while one of them waits to be killed.
namespace crossrank::test {

/// Counts the victim's operations down and kills it before the next one.
class Fuse {
 public:
  Fuse(bool is_victim, int operations) : left_(is_victim ? operations : -1) {}
  void step() {
    if (left_-- == 0) ::kill(::getpid(), SIGKILL);
  }

 private:
  int left_;
};

/// Gathers through shared memory, in the group of all ranks and in groups of two.
void gather_for_ever(Collective const& world, Fuse& fuse);
/// Queues in all shapes: of all ranks, of two, in a row; ended by the writer, by readers, by dropped handles.
void queue_for_ever(Collective const& world, Fuse& fuse);
/// Gathers and states through files in `directory`.
void write_files_for_ever(Collective const& world, Fuse& fuse, std::filesystem::path const& directory);
/// Publishes, agrees that all have, and leaves in order: with and without close, early and late, in an order that
/// `seed` says. Nothing that was published may be missing then.
void leave_in_order(Collective world, Fuse& fuse, unsigned seed);

}  // namespace crossrank::test
