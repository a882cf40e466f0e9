#pragma once
#include <deque>
#include <vector>

#include <crossrank/state.hpp>
#include <crossrank/stream.hpp>

#include "lib/tensor/transfer/idle_streams.hpp"

namespace crossrank {

/// Lets another thread read tensors on GPUs after the work that this thread has enqueued for them.
class StreamHandover {
 public:
  /// Marks the current streams of all GPUs that hold a tensor of `weights`: one event per GPU. Errors as for
  /// `require_readable`, except that tensors may be undefined.
  StreamHandover(StateDict const& weights, char const* operation);

  /// In the other thread: makes other streams current that wait for the marks, until the end of the scope.
  class Scope {
   public:
    explicit Scope(StreamHandover const& from);

   private:
    std::deque<device::IdleStream> streams_{};
    std::deque<StreamGuard> guards_{};
  };

 private:
  std::vector<Event> marks_{};
};

}  // namespace crossrank
