#include <algorithm>
#include <cstring>
#include <numeric>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/algorithms/serial_reduction.hpp"

/// Reductions of every dtype with every op. The bits are those of the serial model, on every backend.
namespace crossrank::test {
namespace {

Tensor tensor_of(std::vector<std::byte> const& bytes, Dtype dtype) {
  auto tensor = Tensor::empty({static_cast<std::int64_t>(bytes.size() * 8 / bits_of(dtype))}, dtype);
  if (!bytes.empty()) std::memcpy(tensor.mutable_bytes().data(), bytes.data(), bytes.size());
  return on_device(tensor);
}

/// The input of each rank and the expected result.
struct Problem {
  Problem(Collective const& world, Dtype its_dtype, ReduceOp op, std::size_t count, std::uint32_t seed)
      : dtype(its_dtype) {
    for (int rank = 0; rank < world.world_size(); ++rank)
      inputs.push_back(random_elements(dtype, count, seed + static_cast<std::uint32_t>(rank)));
    expected = reduce_serially(inputs, dtype, op);
    mine = tensor_of(at_rank(inputs, world.rank()), dtype);
  }
  Dtype dtype;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::byte> expected;
  Tensor mine;
};

void all_reduce_gives_the_bits_of_the_serial_model(ConformanceRank& self) {
  auto& world = self.world;
  std::uint32_t seed = 0;
  for_each_reduction([&](Dtype dtype, ReduceOp op) {
    for (std::size_t const count : {std::size_t{3}, std::size_t{9001}}) {
      Problem problem(world, dtype, op, count, ++seed * 100);
      world.all_reduce(problem.mine, op);
      EXPECT_TRUE(std::ranges::equal(on_host(problem.mine).bytes(), problem.expected))
          << name_of(dtype) << " op " << static_cast<int>(op) << " count " << count;
    }
  });
}

void long_reductions_give_the_bits_of_the_serial_model(ConformanceRank& self) {
  auto& world = self.world;
  for (auto const dtype : {Dtype::f32, Dtype::bf16, Dtype::u8}) {
    for (std::size_t const count : {std::size_t{0}, std::size_t{300'007}}) {
      Problem all(world, dtype, ReduceOp::sum, count, 5);
      world.all_reduce(all.mine, ReduceOp::sum);
      EXPECT_TRUE(std::ranges::equal(on_host(all.mine).bytes(), all.expected)) << name_of(dtype) << " " << count;
    }
  }
}

void reduce_changes_only_the_roots_tensor(ConformanceRank& self) {
  auto& world = self.world;
  for (int root = 0; root < world.world_size(); ++root) {
    for (std::size_t const count : {std::size_t{1}, std::size_t{100'003}}) {
      Problem problem(world, Dtype::f16, ReduceOp::avg, count, static_cast<std::uint32_t>(root) + 40);
      world.reduce(problem.mine, ReduceOp::avg, {root});
      auto const& own = at_rank(problem.inputs, world.rank());
      EXPECT_TRUE(std::ranges::equal(on_host(problem.mine).bytes(), world.rank() == root ? problem.expected : own));
    }
  }
}

void reduce_scatter_gives_each_rank_its_part(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  auto const mine = as_size(world.rank());
  for (std::size_t const part : {std::size_t{0}, std::size_t{5}, std::size_t{70'001}}) {
    Problem problem(world, Dtype::f64, ReduceOp::sum, part * n, 9);
    auto out = on_device(Tensor::zeros({static_cast<std::int64_t>(part)}, Dtype::f64));
    world.reduce_scatter(out, problem.mine, ReduceOp::sum);
    EXPECT_TRUE(std::ranges::equal(on_host(out).bytes(),
                                   std::span(problem.expected).subspan(mine * out.nbytes(), out.nbytes())))
        << part;
  }
}

void reduce_scatterv_takes_any_rows(ConformanceRank& self) {
  auto& world = self.world;
  constexpr std::int64_t sizes[] = {3, 0, 60'001, 1};
  for (int shift = 0; shift < 4; ++shift) {
    std::vector<std::int64_t> rows;
    for (int rank = 0; rank < world.world_size(); ++rank)
      rows.push_back(sizes[as_size(rank + shift) % std::size(sizes)]);
    auto const total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    auto const before = std::accumulate(rows.begin(), rows.begin() + world.rank(), std::int64_t{0});
    Problem problem(world, Dtype::i32, ReduceOp::sum, as_size(total * 2), 11);
    auto out = on_device(Tensor::zeros({at_rank(rows, world.rank()), 2}, Dtype::i32));
    world.reduce_scatterv(out, problem.mine.reshape({total, 2}), {.rows = rows}, ReduceOp::sum);
    EXPECT_TRUE(std::ranges::equal(on_host(out).bytes(),
                                   std::span(problem.expected).subspan(as_size(before) * 8, out.nbytes())));
  }
}

constexpr ConformanceCase reductions_list[] = {
    {"all_reduce_gives_the_bits_of_the_serial_model", all_reduce_gives_the_bits_of_the_serial_model, 1, false,
     OnDevices::staged},
    {"long_reductions_give_the_bits_of_the_serial_model", long_reductions_give_the_bits_of_the_serial_model, 1, false,
     OnDevices::staged},
    {"reduce_changes_only_the_roots_tensor", reduce_changes_only_the_roots_tensor, 1, false, OnDevices::staged},
    {"reduce_scatter_gives_each_rank_its_part", reduce_scatter_gives_each_rank_its_part, 1, false, OnDevices::staged},
    {"reduce_scatterv_takes_any_rows", reduce_scatterv_takes_any_rows, 1, false, OnDevices::yes},
};

}  // namespace

std::span<ConformanceCase const> reduction_cases() { return reductions_list; }

}  // namespace crossrank::test
