#include "lib/platform/sigpipe_blocked.hpp"

#include <array>
#include <cerrno>
#include <csignal>

#include <unistd.h>

#include <gtest/gtest.h>

namespace crossrank::test {
namespace {

/// A pipe whose reader has gone.
class BrokenPipe {
 public:
  BrokenPipe() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    ::close(ends_[0]);
  }
  ~BrokenPipe() { ::close(ends_[1]); }
  BrokenPipe(BrokenPipe const&) = delete;
  BrokenPipe& operator=(BrokenPipe const&) = delete;
  /// The errno of a write.
  [[nodiscard]] int write() const { return ::write(ends_[1], "x", 1) == 1 ? 0 : errno; }

 private:
  std::array<int, 2> ends_{};
};

bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

TEST(SigpipeBlocked, makes_a_write_to_a_broken_pipe_an_error) {
  BrokenPipe const pipe;
  {
    platform::SigpipeBlocked const blocked;
    EXPECT_EQ(pipe.write(), EPIPE);
    EXPECT_TRUE(is_pending());
  }
  EXPECT_FALSE(is_pending());
  EXPECT_EXIT((void)pipe.write(), testing::KilledBySignal(SIGPIPE), "");  // as before the scope
}

TEST(SigpipeBlocked, leaves_a_signal_that_the_caller_has_blocked) {
  platform::SigpipeBlocked const callers;
  BrokenPipe const pipe;
  {
    platform::SigpipeBlocked const blocked;
    EXPECT_EQ(pipe.write(), EPIPE);
  }
  EXPECT_TRUE(is_pending());
}

}  // namespace
}  // namespace crossrank::test
