#pragma once
#include <crossrank/stream.hpp>

namespace crossrank::device {

/// A stream of a GPU for work beside the caller's, until the end of the scope. The process keeps the streams, so that a
/// call costs no new one. Any thread.
class IdleStream {
 public:
  /// Takes an idle stream, or makes one. Errors as for `Stream::create`.
  explicit IdleStream(Device device);
  /// Gives the stream back, unless its work has not ended.
  ~IdleStream();
  IdleStream(IdleStream const&) = delete;
  IdleStream& operator=(IdleStream const&) = delete;

  [[nodiscard]] Stream const& stream() const noexcept { return stream_; }

 private:
  Stream stream_;
};

}  // namespace crossrank::device
