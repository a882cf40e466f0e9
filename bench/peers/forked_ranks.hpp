#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/harness/harness.hpp"

namespace crossrank::bench {

/// Forks the ranks, for peers without a launcher. This process is rank 0.
class ForkedRanks {
 public:
  explicit ForkedRanks(int ranks) : ranks_(ranks) {
    void* const at = ::mmap(nullptr, sizeof(BarrierState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(at != MAP_FAILED, "no shared memory for the barrier");
    barrier_ = std::construct_at(static_cast<BarrierState*>(at));
    for (int rank = 1; rank < ranks && rank_ == 0; ++rank) {
      auto const child = ::fork();
      require(child >= 0, "cannot fork");
      if (child == 0) rank_ = rank;
    }
  }
  [[nodiscard]] int rank() const noexcept { return rank_; }

  void barrier() {
    auto const round = barrier_->round.load();
    if (barrier_->arrived.fetch_add(1) + 1 == ranks_) {
      barrier_->arrived.store(0);
      barrier_->round.fetch_add(1);
      return;
    }
    while (barrier_->round.load() == round) std::this_thread::yield();
  }

  /// Rank 0 waits for all other ranks, which exit here.
  void finish() {
    if (rank_ != 0) std::exit(0);
    for (int rank = 1; rank < ranks_; ++rank) {
      int status = 0;
      require(::wait(&status) > 0 && status == 0, "a rank of the peer failed");
    }
  }

 private:
  struct BarrierState {
    std::atomic<int> arrived{0};
    std::atomic<int> round{0};
  };
  int ranks_;
  int rank_ = 0;
  BarrierState* barrier_ = nullptr;
};

}  // namespace crossrank::bench
