#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_transport.hpp>
#include <crossrank/spi/transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"
#include "collectives/device_transport/call_gate.hpp"
#include "collectives/device_transport/call_table.hpp"
#include "collectives/device_transport/device_watchdog.hpp"
#include "lib/device/cuda/capture.hpp"
#include "lib/node/group/device_recorder.hpp"

namespace crossrank::device {

class GraphReplay;

/// The devices of a group: its device transport, the watchdog over it, and the flight recorder.
class WatchedTransport : public std::enable_shared_from_this<WatchedTransport> {
 public:
  /// The facts on which all ranks of the group have agreed.
  struct Group {
    std::string name{};          ///< of the group on the CPU
    std::string_view backend{};  ///< name of the factory
    spi::DevicePlace place{};
    bool have_kernels = false;  ///< the devices of all ranks run the library's kernels
  };

  /// The ranks compare their calls with one of these. Where both are null, the host waits for the other ranks.
  struct CallChecks {
    std::unique_ptr<CallTable> table{};  ///< in shared memory
    std::unique_ptr<CallGate> gate{};    ///< while the streams wait
  };
  WatchedTransport(Group group, std::unique_ptr<spi::DeviceTransport> transport, CallChecks checks,
                   std::unique_ptr<DeviceWatchdog> watchdog, node::DeviceRecorder recorder);
  /// Ends the transport after its work, then leaves the watchdog.
  ~WatchedTransport();
  WatchedTransport(WatchedTransport const&) = delete;
  WatchedTransport& operator=(WatchedTransport const&) = delete;

  /// Returns the name of the group on the CPU.
  [[nodiscard]] std::string const& name() const noexcept { return group_.name; }
  /// Returns the name of the transport's factory, which lives as long as the process.
  [[nodiscard]] std::string_view backend() const noexcept { return group_.backend; }
  [[nodiscard]] spi::DevicePlace const& place() const noexcept { return group_.place; }
  /// Returns the vendor's handle, or null once it has ended.
  [[nodiscard]] void* native() const noexcept { return transport_->native(); }
  /// Returns whether a call on the stream stays on the devices. Others, and all messages, go through host memory.
  [[nodiscard]] bool carries(algorithms::Call const& call, Stream const& stream) const {
    return route_of(call, stream) != Route::host_memory;
  }
  /// Returns the memory of the device that `enqueue` needs for a reduction in rank order; null for other calls.
  [[nodiscard]] std::shared_ptr<spi::Storage> make_scratch(algorithms::Call const& call, Stream const& stream) const;
  /// Returns whether `compare` can be used.
  [[nodiscard]] bool has_call_table() const noexcept { return checks_.table != nullptr; }
  /// Compares the next call with those that the other ranks have made, without waiting for the ranks that have not.
  /// `MismatchError` on all ranks when they differ; `TimeoutError` when this rank is far ahead of one that does not
  /// follow; the failure of the group.
  void compare(algorithms::Call const& call);
  /// Returns whether the streams can wait in place of the host until the ranks have compared a call:
  /// `begin_comparison`, `hold` and `end_comparison` can be used, in this order.
  [[nodiscard]] bool has_call_gate() const noexcept { return checks_.gate != nullptr; }
  /// Returns the number of a call that the ranks are about to compare.
  [[nodiscard]] std::uint32_t begin_comparison() noexcept { return checks_.gate->next(); }
  /// Lets later work of the stream wait for the comparison.
  void hold(Stream const& stream, std::uint32_t number) { checks_.gate->hold(stream, number); }
  /// Lets the streams pass the call, or makes the group fail on all ranks because of the error. Any thread.
  void end_comparison(std::uint32_t number, std::exception_ptr const& error) noexcept;
  /// Enqueues a call on the stream and returns its end. With `scratch` it is a reduction in rank order. `BackendError`
  /// when the transport refuses; the failure of the group. On a stream that is being captured the call becomes a part
  /// of the graph.
  [[nodiscard]] Event enqueue(algorithms::Call const& call, Stream const& stream, spi::Storage* scratch);

  /// Work that this rank has begun to enqueue.
  struct Begun {
    Event started{};
    node::DeviceFlightNote note{};
  };
  /// Marks the begin of work on the stream that uses the transport. Throws the failure of the group.
  [[nodiscard]] Begun begin_work(node::DeviceFlightOperation operation, Stream const& stream);
  /// Lets the watchdog check the work until the stream has passed it, and returns its end.
  [[nodiscard]] Event end_work(Begun begun, Stream const& stream, std::string name, std::optional<int> root);

  /// Makes the group fail on all ranks, because this one cannot do its part of what the others have enqueued.
  void abort(std::string_view why) noexcept;

  /// Returns memory of the transport's allocator that the group knows, or null where it has none. Collective over
  /// `transport`, the group on the CPU, which has no other collective under way. `MismatchError` when the ranks ask for
  /// different numbers of bytes, `UnavailableError` on all ranks when one of them has no memory.
  [[nodiscard]] std::shared_ptr<spi::Storage> make_buffer(std::size_t bytes, spi::Transport& transport,
                                                          spi::TimeoutPolicy const& timeout_policy);

  /// Refuses replays of graphs from now on, waits for the work of the last call, and forgets the group on the CPU.
  void close() noexcept;
  /// Forgets the group on the CPU, which ends.
  void leave_group() noexcept {
    if (checks_.table) checks_.table->leave_group();
  }
  /// Returns the limit of a call that makes no progress.
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return watchdog_->timeout(); }
  /// Throws `UsageError` after `close`.
  void require_open(char const* operation) const;
  /// Returns whether the transport has been aborted because of a failure. Any thread; one load.
  [[nodiscard]] bool has_failed() const noexcept { return watchdog_->has_failed(); }
  /// Throws the failure, if there is one, each time.
  void throw_failure() const;

 private:
  enum class Route : std::uint8_t { host_memory, transport, rank_order };
  [[nodiscard]] Route route_of(algorithms::Call const& call, Stream const& stream) const;
  void enqueue_work(algorithms::Call const& call, Stream const& stream, spi::Storage* scratch);
  void capture(cuda::Capture& into, algorithms::Call const& call, Stream const& stream, spi::Storage* scratch);
  /// Runs this rank's part of a call. Where it fails, the group fails on all ranks, and the failure of the group is
  /// thrown unless it is this rank's own.
  template <class Work>
  auto run_or_end(Work const& work);
  /// Waits until this rank may make its next call.
  void await_ranks_behind(char const* operation);
  [[nodiscard]] ErrorInfo dead_group(char const* operation, std::string message, std::vector<int> ranks) const;
  [[noreturn]] void end_after(Error const& error);
  [[noreturn]] void end_after_timeout(TimeoutError const& error);
  void await_last_work() const noexcept;
  /// Waits until the watchdog has decided why the group fails.
  void await_verdict() const;

  Group const group_;
  pid_t const process_ = ::getpid();
  std::unique_ptr<spi::DeviceTransport> transport_;
  CallChecks checks_;
  std::unique_ptr<DeviceWatchdog> watchdog_;  ///< its thread uses the two above, so that it ends first
  node::DeviceRecorder recorder_;
  std::atomic<bool> closed_{false};
  Event last_work_{};
  std::uint64_t capture_number_ = 0;           ///< of the last capture with a call of this group
  std::weak_ptr<GraphReplay> graph_replay_{};  ///< in that capture
};

}  // namespace crossrank::device
