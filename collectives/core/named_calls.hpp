#pragma once
#include <optional>
#include <span>
#include <string_view>

#include <crossrank/collective.hpp>

#include "collectives/algorithms/call.hpp"

namespace crossrank::detail {

/// The collectives that a composite call (such as `broadcast_object`) makes on a group.
///
/// Where ranks compare calls, they also compare the name and root of the composite call, so a rank is never matched
/// with one that makes another call with the same bytes.
class NamedCalls {
 public:
  NamedCalls(Collective const& group, char const* name, std::optional<int> root = {}) noexcept
      : group_(group), name_(name), root_(root) {}

  void broadcast(Tensor& tensor, int root) const;
  void all_gather(Tensor& out, Tensor const& in) const;
  /// Gathers the rows of several tensors on one device, which have equal numbers of rows, in one call. A mismatch shows
  /// the arguments of this call.
  void all_gatherv(std::span<Tensor> outs, std::span<Tensor const> ins, Rows rows) const;
  /// Start a fused call for `subject`, such as "of unit layer1". Ranks that compare calls also compare the subject, and
  /// a mismatch names it.
  [[nodiscard]] Request start_all_gather(std::span<Tensor> outs, std::span<Tensor const> ins,
                                         std::string_view subject) const;
  [[nodiscard]] Request start_reduce_scatter(std::span<Tensor> outs, std::span<Tensor const> ins, ReduceOp op,
                                             std::string_view subject) const;
  /// Returns the GPU that this rank uses in the group. Nothing before its first call on one. Local.
  [[nodiscard]] std::optional<Device> own_device() const;
  /// Throws `UsageError` when this rank uses another GPU in the group. Local.
  void require_own_device(Device device) const;
  /// Decides how the group's collectives move tensors of `device`, which makes the communicator. Collective the first
  /// time.
  void prepare_device(Device device) const;
  /// Returns device memory for the group's collectives on GPUs, or null where ordinary memory is as good. Collective.
  [[nodiscard]] std::shared_ptr<spi::Storage> make_buffer(Device device, std::size_t bytes) const;
  /// Returns the group's state. `UsageError` for a handle without a group, and once it is closed.
  [[nodiscard]] GroupState& state() const;
  /// Compares only the call, at check level `collective`, for calls that otherwise need no communication.
  void agree() const;

 private:
  void run(algorithms::Call call) const;
  [[nodiscard]] Request start(algorithms::Call call, std::string_view subject) const;

  Collective const& group_;
  char const* name_;
  std::optional<int> root_;
};

}  // namespace crossrank::detail
