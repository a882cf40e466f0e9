#include "tests/collectives/device/gpu_tensors.hpp"

#include <cstddef>

#include <gtest/gtest.h>

#include "lib/core/as_size.hpp"

namespace crossrank::test {

Tensor filled(Collective const& world, std::int64_t count, Device device) {
  return Tensor::of(std::vector<float>(as_size(count), static_cast<float>(world.rank() + 1)), {count}).to(device);
}

Device gpu_of_thread(Collective const& world) { return Device::cuda(world.rank()); }

Tensor filled_on_own_gpu(Collective const& world, std::int64_t count) {
  return filled(world, count, gpu_of_thread(world));
}

std::vector<Request> all_reduce_each(Collective const& world, std::vector<Tensor>& tensors) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i % 2 == 0) {
      world.all_reduce(tensors[i]);
    } else {
      requests.push_back(world.iall_reduce(tensors[i]));
    }
  }
  return requests;
}

std::vector<float> values(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const all = host.as<float>();
  return {all.begin(), all.end()};
}

void expect_exchanges(Collective const& world, Device device) {
  auto const ranks = as_size(world.world_size());
  auto const sum = static_cast<float>(ranks * (ranks + 1)) / 2;
  auto joined = Tensor::empty({world.world_size(), 3}, Dtype::f32, device);
  world.all_gather(joined, filled(world, 3, device));
  for (std::size_t i = 0; i < 3 * ranks; ++i) EXPECT_EQ(values(joined)[i], static_cast<float>(i / 3 + 1));
  auto exchanged = Tensor::empty({world.world_size(), 2}, Dtype::f32, device);
  world.all_to_all(exchanged, filled(world, 2 * world.world_size(), device));
  for (std::size_t i = 0; i < 2 * ranks; ++i) EXPECT_EQ(values(exchanged)[i], static_cast<float>(i / 2 + 1));
  auto part = Tensor::empty({4}, Dtype::f32, device);
  world.reduce_scatter(part, filled(world, 4 * world.world_size(), device));
  EXPECT_EQ(values(part), std::vector<float>(4, sum));
}

}  // namespace crossrank::test
