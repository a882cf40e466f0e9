#pragma once
#include <optional>

#include <crossrank/collective.hpp>

#include "collectives/algorithms/call.hpp"

namespace crossrank::detail {

/// What a call of another name and with a root of its own does on a group. Where ranks compare calls, they compare
/// those as well: none meets another that does something else with the same bytes.
class NamedCalls {
 public:
  NamedCalls(Collective const& group, char const* name, std::optional<int> root = {}) noexcept
      : group_(group), name_(name), root_(root) {}

  void broadcast(Tensor& tensor, int root) const;
  void all_gather(Tensor& out, Tensor const& in) const;
  /// Meets for nothing but the comparison, at the level that compares every call: for what does without the group.
  void agree() const;

 private:
  void run(algorithms::Call call) const;

  Collective const& group_;
  char const* name_;
  std::optional<int> root_;
};

}  // namespace crossrank::detail
