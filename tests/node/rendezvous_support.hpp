#pragma once
#include <functional>
#include <string>

#include <sys/un.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "lib/node/group/node_comm.hpp"
#include "tests/support/timeouts.hpp"
#include "tests/support/spawn_rank.hpp"
#include "tests/support/thread_ranks.hpp"

namespace crossrank::test {

inline node::NodeOptions node_options(std::string const& job_id, int rank, int ranks,
                                      std::chrono::milliseconds timeout = step_timeout) {
  node::NodeOptions options;
  options.key.job_id = job_id;
  options.rank = rank;
  options.ranks = ranks;
  options.timeout = timeout;
  options.cap_bytes = std::uint64_t{16} << 20;
  return options;
}

/// Joins with each of `all` in its own thread, as processes would. Returns what each threw.
inline std::vector<std::exception_ptr> join_all(std::vector<node::NodeOptions> const& all) {
  std::vector<std::function<void()>> actions;
  for (auto const& options : all) actions.emplace_back([options] { static_cast<void>(node::NodeComm::join(options)); });
  return run_threads(actions);
}

/// Returns the info of the `Kind` in `thrown`. Any other exception, or none, fails the test.
template <class Kind>
ErrorInfo expect_error(std::exception_ptr const& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (Kind const& e) {
    return e.info();
  } catch (...) {
    // reported below
  }
  ADD_FAILURE() << "unexpected exception or none: " << text_of(thrown);
  return {};
}

/// The abstract socket address of a job's rendezvous.
struct RendezvousAddress {
  explicit RendezvousAddress(std::string const& job_id) {
    node::JobKey key;
    key.job_id = job_id;
    auto const text = "crossrank-" + std::to_string(::geteuid()) + "-" + key.digest();
    name.sun_family = AF_UNIX;
    text.copy(name.sun_path + 1, text.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  /// Listens on the address with space for `backlog` connections. Returns the socket, or -1.
  [[nodiscard]] int squat(int backlog) const {
    int const fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(fd, reinterpret_cast<sockaddr const*>(&name), bytes) == 0 && ::listen(fd, backlog) == 0) return fd;
    ::close(fd);
    return -1;
  }
  /// Connects and sends nothing. Returns the socket, or -1.
  [[nodiscard]] int visit() const {
    int const fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (::connect(fd, reinterpret_cast<sockaddr const*>(&name), bytes) == 0) return fd;
    ::close(fd);
    return -1;
  }

  sockaddr_un name{};
  socklen_t bytes = 0;
};

}  // namespace crossrank::test
