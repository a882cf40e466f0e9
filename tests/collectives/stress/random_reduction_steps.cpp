#include <algorithm>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/stress/random_steps.hpp"
#include "tests/collectives/algorithms/serial_reduction.hpp"

namespace crossrank::test {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<std::pair<Dtype, ReduceOp>> const& all_reductions() {
  static auto const all = [] {
    std::vector<std::pair<Dtype, ReduceOp>> list;
    for_each_reduction([&](Dtype dtype, ReduceOp op) { list.emplace_back(dtype, op); });
    return list;
  }();
  return all;
}

/// The inputs of the ranks and the expected result.
struct Sum {
  Sum(StepPlace const& at, std::int64_t count) {
    auto const& all = all_reductions();
    std::tie(dtype, op) = all[as_size(at.script.below(static_cast<int>(all.size())))];
    for (int rank = 0; rank < at.ranks(); ++rank)
      inputs.push_back(random_elements(dtype, as_size(count), static_cast<std::uint32_t>(at.number * 131 + rank)));
    combined = reduce_serially(inputs, dtype, op);
  }
  [[nodiscard]] std::shared_ptr<Tensor> mine(StepPlace const& at) const {
    auto const& bytes = at_rank(inputs, at.rank());
    auto tensor = empty(static_cast<std::int64_t>(bytes.size() * 8 / bits_of(dtype)));
    std::ranges::copy(bytes, tensor->mutable_bytes().begin());
    return tensor;
  }
  [[nodiscard]] std::shared_ptr<Tensor> empty(std::int64_t count) const {
    return std::make_shared<Tensor>(Tensor::zeros({count}, dtype));
  }

  Dtype dtype{};
  ReduceOp op{};
  std::vector<Bytes> inputs{};
  Bytes combined{};
};

std::int64_t any_count(StepPlace const& at) { return static_cast<std::int64_t>(at.script.size() / 16); }

BegunStep all_reduce(StepPlace const& at, When when) {
  Sum const sum(at, any_count(at));
  auto const tensor = sum.mine(at);
  BegunStep begun{.check = expecting(at, tensor, sum.combined)};
  if (when == When::later) {
    begun.request = at.group.iall_reduce(*tensor, sum.op);
  } else {
    at.group.all_reduce(*tensor, sum.op);
  }
  return begun;
}

BegunStep reduce(StepPlace const& at, When when) {
  int const root = at.any_rank();
  Sum const sum(at, any_count(at));
  auto const tensor = sum.mine(at);
  // Ranks other than the root keep their tensor.
  auto const& expected = at.rank() == root ? sum.combined : at_rank(sum.inputs, at.rank());
  BegunStep begun{.check = expecting(at, tensor, expected)};
  if (when == When::later) {
    begun.request = at.group.ireduce(*tensor, sum.op, {root});
  } else {
    at.group.reduce(*tensor, sum.op, {root});
  }
  return begun;
}

BegunStep reduce_scatter(StepPlace const& at, When when) {
  bool const is_even = at.script.coin();
  auto const all = any_count(at) / at.ranks();
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < at.ranks(); ++rank) rows.push_back(is_even ? all : at.script.below(100));
  auto const me = as_size(at.rank());
  auto const before = std::accumulate(rows.begin(), rows.begin() + at.rank(), std::int64_t{0});
  Sum const sum(at, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  auto const in = sum.mine(at);
  auto const out = sum.empty(rows[me]);
  auto const element = static_cast<std::ptrdiff_t>(bits_of(sum.dtype) / 8);
  auto const from = sum.combined.begin() + before * element;
  BegunStep begun{.check = expecting(at, out, Bytes(from, from + rows[me] * element), in)};
  if (when == When::later) {
    begun.request = is_even ? at.group.ireduce_scatter(*out, *in, sum.op)
                            : at.group.ireduce_scatterv(*out, *in, {.rows = rows}, sum.op);
  } else if (is_even) {
    at.group.reduce_scatter(*out, *in, sum.op);
  } else {
    at.group.reduce_scatterv(*out, *in, {.rows = rows}, sum.op);
  }
  return begun;
}

constexpr RandomStep reductions[] = {all_reduce, reduce, reduce_scatter};

}  // namespace

std::span<RandomStep const> reduction_steps() { return reductions; }

}  // namespace crossrank::test
