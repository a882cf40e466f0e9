#pragma once
#include <csignal>
#include <filesystem>
#include <functional>

#include <unistd.h>

#include <crossrank/collective.hpp>

/// Workloads that repeat until the victim is killed.
namespace crossrank::test {

/// Counts the victim's operations and kills it before a chosen one.
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
/// Uses queues of all ranks, of two ranks and in a row, which writers, readers or dropped handles end.
void queue_for_ever(Collective const& world, Fuse& fuse);
/// Gathers and writes states through files in `directory`.
void write_files_for_ever(Collective const& world, Fuse& fuse, std::filesystem::path const& directory);
/// Publishes, waits until all ranks have, and leaves: with and without `close`, early and late, in an order drawn from
/// `seed`. No published state may be missing then.
void leave_in_order(Collective world, Fuse& fuse, unsigned seed);

}  // namespace crossrank::test
