#include <gtest/gtest.h>

#include "tests/collectives/coordinator/group_dicts.hpp"
#include "tests/collectives/coordinator/group_suite.hpp"

/// The cases of the suite that are about dictionaries.
namespace crossrank::test {

void dictionaries_arrive(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  for (int src = 0; src < n; ++src) {
    auto const got = group.broadcast_tensor_dict(world.rank() == src ? batch(2) : TensorDict{}, {src});
    EXPECT_TRUE(same_dict(got, batch(2)));
    EXPECT_EQ(got.tensor("big").device(), CaseDevice::current());
  }
  // Down the pipeline.
  auto held = group.is_first_rank() ? batch(3) : group.recv_tensor_dict();
  EXPECT_TRUE(same_dict(held, batch(3)));
  if (!group.is_last_rank()) group.send_tensor_dict(held);
  // Round the ring: receive before waiting for the send.
  if (n > 1) {
    auto coming = group.irecv_tensor_dict();
    auto going = group.isend_tensor_dict(batch(static_cast<float>(world.rank())));
    EXPECT_TRUE(same_dict(coming.wait(), batch(static_cast<float>((world.rank() + n - 1) % n))));
    EXPECT_EQ(&coming.wait(), &coming.wait());
    EXPECT_TRUE(coming.test());
    going.wait();
    EXPECT_TRUE(going.test());
  }
  world.barrier();
}

void dictionaries_follow_the_all_gather_rule(Collective const& world) {
  Grid const grid(world);
  EXPECT_TRUE(same_dict(through(grid, batch(5)), batch(5)));
  TensorDict const odd{{"odd", counting({1001}, 2.F)}, {"even", counting({1000}, 2.F)}};
  EXPECT_TRUE(same_dict(through(grid, odd), odd));
  // The tensor differs between the tensor-parallel ranks. Sent in parts, it would arrive mixed.
  TensorDict const own{{"residual", counting({1000}, static_cast<float>(world.rank() % 2 + 1))}};
  EXPECT_TRUE(same_dict(through(grid, own, {{"residual", false}}), own));
  world.barrier();
}

}  // namespace crossrank::test
