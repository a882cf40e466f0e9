#pragma once
#include <cstdint>
#include <memory>
#include <mutex>

#include <crossrank/device.hpp>
#include <crossrank/stream.hpp>

namespace crossrank::device {

/// Holds the calls of a group on the streams of this rank until the ranks have compared them. So the host enqueues the
/// calls without waiting for the other ranks.
///
/// The ranks compare the calls one after the other, and a stream waits until a word in page-locked memory has reached
/// the number of its call. The process never frees the words: a stream may come to its wait after the group has ended,
/// and freeing page-locked memory waits for streams, of which one may wait for this rank.
class CallGate {
 public:
  /// Returns null if streams of the device cannot wait for the host, or if there is no memory.
  [[nodiscard]] static std::unique_ptr<CallGate> make(Stream const& stream);
  /// `word` is of the process's store for devices of `kind`, and goes back there.
  CallGate(Device::Kind kind, std::uint32_t* word);
  ~CallGate();
  CallGate(CallGate const&) = delete;
  CallGate& operator=(CallGate const&) = delete;

  /// Returns the number of the next call. One thread at a time.
  [[nodiscard]] std::uint32_t next() noexcept;
  /// Lets later work of the stream wait until `release` of this number. `BackendError` when the driver refuses.
  void hold(Stream const& stream, std::uint32_t number);
  /// Lets the streams pass this call and all before it. Any thread, in the order of the numbers.
  void release(std::uint32_t number) noexcept;
  /// Lets the streams pass all calls, because the group has failed. Any thread.
  void release_all() noexcept;
  /// Returns whether the streams may wait for a call.
  [[nodiscard]] bool holds_any() const noexcept;

 private:
  /// The last call that the streams may pass.
  void write(std::uint32_t number) noexcept;
  [[nodiscard]] std::uint32_t read() const noexcept;

  Device::Kind const kind_;
  std::uint32_t* const word_;   ///< only grows, also from group to group
  mutable std::mutex mutex_{};  ///< guards the members below
  std::uint32_t last_;          ///< the last number that `next` has returned
  bool is_open_ = false;        ///< whether nothing is held any more
};

}  // namespace crossrank::device
