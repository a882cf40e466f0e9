#pragma once
#include <cstdint>

#include <crossrank/stream.hpp>

namespace crossrank::device {

/// The capture in which a call under way was started, or that it was started in none.
///
/// The rest of the call is enqueued later. If its stream is in another capture by then, that rest would become a part
/// of a graph, which is not what the caller wrote, or it would be missing in the graph.
class CaptureAtStart {
 public:
  explicit CaptureAtStart(Stream const& stream) : number_(number_of(stream)) {}

  /// Returns whether the stream is in the same capture as at the start, or in none as then.
  [[nodiscard]] bool holds(Stream const& stream) const { return number_of(stream) == number_; }
  /// Throws `UsageError` unless it does.
  void require(Stream const& stream, char const* operation) const;

 private:
  static std::uint64_t number_of(Stream const& stream);

  std::uint64_t number_;  ///< 0: not in a capture
};

}  // namespace crossrank::device
