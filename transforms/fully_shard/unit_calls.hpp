#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <crossrank/collective.hpp>

#include "collectives/core/named_calls.hpp"

/// How the tensors of a unit travel.
namespace crossrank::transforms {

/// From this length on, a tensor travels by itself: straight from where it is to where it belongs. Shorter ones travel
/// together, through a buffer.
inline constexpr std::size_t travels_alone = std::size_t{256} << 10;

/// Starts `call(outs, ins)` for each pair of long tensors, and once for all short ones. All ranks have the same
/// lengths.
template <class Call>
std::vector<Request> start_calls(std::span<Tensor const> outs, std::span<Tensor const> ins, Call const& call) {
  std::vector<Request> requests;
  std::vector<Tensor> short_outs;
  std::vector<Tensor> short_ins;
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (outs[i].nbytes() < travels_alone) {
      short_outs.push_back(outs[i]);
      short_ins.push_back(ins[i]);
    } else {
      std::vector<Tensor> one{outs[i]};
      requests.push_back(call(std::span(one), ins.subspan(i, 1)));
    }
  }
  if (!short_outs.empty()) requests.push_back(call(std::span(short_outs), std::span<Tensor const>(short_ins)));
  return requests;
}

/// Starts to gather tensors of a unit. Ranks that gather different units get a `MismatchError` that names them.
inline std::vector<Request> start_all_gather(Collective const& group, std::span<Tensor const> outs,
                                             std::span<Tensor const> ins, std::string const& unit) {
  return start_calls(outs, ins, [&](auto to, auto from) {
    return detail::NamedCalls(group, "all_gather").start_all_gather(to, from, "of " + unit);
  });
}

/// Starts to average and scatter gradients of a unit, with the same check.
inline std::vector<Request> start_reduce_scatter(Collective const& group, std::span<Tensor const> outs,
                                                 std::span<Tensor const> ins, std::string const& unit) {
  return start_calls(outs, ins, [&](auto to, auto from) {
    return detail::NamedCalls(group, "reduce_scatter").start_reduce_scatter(to, from, ReduceOp::avg, "of " + unit);
  });
}

inline void wait_for_all(std::vector<Request>& requests) {
  for (auto& request : requests) request.wait();
  requests.clear();
}

inline Shape with_rows(Shape const& shape, std::int64_t rows) {
  return shape.empty() ? Shape{rows} : shape.with(0, rows);
}

}  // namespace crossrank::transforms
