#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

#include "lib/device/cuda/driver.hpp"

namespace crossrank::cuda {

/// Something beside the driver that takes part in each replay of a graph, such as the communicator of its collectives.
class ReplayObserver {
 public:
  ReplayObserver() = default;
  virtual ~ReplayObserver() = default;
  ReplayObserver(ReplayObserver const&) = delete;
  ReplayObserver& operator=(ReplayObserver const&) = delete;

  /// Throws when the graph cannot be replayed any more. Comes before anything else.
  virtual void require_usable() = 0;
  /// Comes before the launch.
  virtual void before_replay(Stream const& stream) = 0;
  /// Comes after the launch, which has enqueued the work.
  virtual void after_replay(Stream const& stream) = 0;
  /// Comes instead when the replay has failed in between.
  virtual void abandon_replay(char const* why) noexcept = 0;
};

/// What a graph needs beside its nodes.
struct GraphResources {
  std::vector<std::shared_ptr<void const>> objects{};          ///< memory that the nodes use
  std::vector<std::shared_ptr<spi::Storage const>> written{};  ///< memory that the library's calls in it write
  std::vector<std::shared_ptr<ReplayObserver>> observers{};    ///< in the order of their first call
};

/// The capture of a graph that this thread is in. `Graph::capture` makes it.
class Capture {
 public:
  /// Begins a capture on the stream. `UsageError` for the default stream, a stream that is being captured, and a thread
  /// that is in a capture. The context must be current.
  explicit Capture(Stream const& stream);
  /// Ends the capture and discards what it has captured, unless `end` was called.
  ~Capture();
  Capture(Capture const&) = delete;
  Capture& operator=(Capture const&) = delete;

  /// Returns this thread's capture if the stream belongs to it, else null. Free for a thread without a capture.
  [[nodiscard]] static Capture* of(Stream const& stream);

  /// Returns a number that no other capture of the process has.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Keeps an object as long as the graph lives.
  void keep(std::shared_ptr<void const> object) { resources_.objects.push_back(std::move(object)); }
  /// Notes that the graph writes the memory.
  void will_write(std::shared_ptr<spi::Storage const> storage) { resources_.written.push_back(std::move(storage)); }
  /// Lets an observer take part in each replay.
  void add(std::shared_ptr<ReplayObserver> observer) { resources_.observers.push_back(std::move(observer)); }
  /// Ends the capture and returns the graph. `UsageError` when the capture was invalidated.
  [[nodiscard]] CUgraph_st* end();
  [[nodiscard]] GraphResources take_resources() noexcept { return std::move(resources_); }

 private:
  Stream const stream_;
  std::uint64_t const number_;
  GraphResources resources_{};
  bool ended_ = false;
};

/// Throws `UsageError` while another library or another thread captures the stream: nothing would keep the memory of
/// `operation` for the replays of that graph.
void require_no_foreign_capture(Stream const& stream, char const* operation);

}  // namespace crossrank::cuda
