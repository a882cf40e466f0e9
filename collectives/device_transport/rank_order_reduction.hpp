#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <crossrank/spi/device_transport.hpp>
#include <crossrank/stream.hpp>

#include "collectives/algorithms/call.hpp"

namespace crossrank::device {

/// A reduction in rank order: the transport exchanges the values, and a kernel of the device combines them. All of it
/// is enqueued on one stream.
///
/// Of long values, each rank combines one slice, and the transport gathers the results. Short values go whole to each
/// rank that gets the result, which saves the second collective.
class RankOrderReduction {
 public:
  /// The call must outlive the reduction.
  RankOrderReduction(algorithms::Call const& call, spi::DevicePlace const& place);

  /// Returns whether the transport carries the collectives that the reduction needs.
  [[nodiscard]] bool is_carried_by(spi::DeviceTransport const& transport) const;
  /// Returns how much memory of the device `enqueue` needs.
  [[nodiscard]] std::size_t scratch_bytes() const noexcept;
  /// Enqueues the reduction. `scratch` is memory of the device that stays until the stream has passed. Errors as for
  /// `DeviceTransport::enqueue`.
  void enqueue(spi::DeviceTransport& transport, Stream const& stream, std::byte* scratch,
               spi::DevicePollHook const& poll_hook) const;

 private:
  [[nodiscard]] bool scatters() const noexcept;
  /// Returns the collective that brings the values of all ranks to `gathered`.
  [[nodiscard]] spi::DeviceCollective exchange(std::span<std::byte> gathered) const;
  void combine(Stream const& stream, std::byte const* values, std::byte* result) const;
  /// Returns the collective that brings the results of the slices to their ranks, if they are not there already.
  [[nodiscard]] std::optional<spi::DeviceCollective> results(std::byte* own_result) const;
  [[nodiscard]] std::byte* own_place() const noexcept;
  /// Returns whether the kernel writes to scratch memory: this rank's slice has no place in the caller's tensor, or one
  /// without the alignment that the kernel needs.
  [[nodiscard]] bool needs_result_memory() const noexcept;

  algorithms::Call const& call_;
  std::size_t ranks_;
  std::size_t element_bytes_;
  bool goes_whole_;
  bool has_result_;                      ///< this rank gets a result
  std::vector<std::size_t> slices_{};    ///< bytes that each rank combines, or all bytes of each rank
  std::size_t own_ = 0;                  ///< bytes that this rank combines
  std::size_t offset_ = 0;               ///< of its slice
  std::vector<std::size_t> incoming_{};  ///< `own_` for each rank
};

}  // namespace crossrank::device
