#include "collectives/tensor_dict/dict_codec.hpp"
#include "lib/core/as_size.hpp"
#include "tests/collectives/coordinator/group_dicts.hpp"
#include "tests/collectives/coordinator/group_fixture.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::test {
namespace {

class GroupDict : public testing::TestWithParam<int> {};

CROSSRANK_RANK_SCENARIO(group_dict) { return run_connected(dictionaries_arrive); }

TEST_P(GroupDict, arrives_whole_between_processes) { expect_success(GetParam(), "group_dict"); }

INSTANTIATE_TEST_SUITE_P(Ranks, GroupDict, testing::Values(1, 2, 3, 4),
                         [](auto const& each) { return std::to_string(each.param); });

TEST(AllGatherRule, trusts_the_sender_for_overridden_tensors) {
  run_thread_ranks(4, [](Collective const& world) {
    Grid const grid(world);
    // The tensor differs between the tensor-parallel ranks. Sent in parts, it would arrive mixed.
    TensorDict const own{{"residual", counting({1000}, static_cast<float>(world.rank() % 2 + 1))},
                         {"nested", TensorDict{{"x", counting({1000}, static_cast<float>(world.rank() % 2 + 1))}}}};
    auto const got = through(grid, own, {{"residual", false}, {"nested.x", false}});
    EXPECT_TRUE(same_dict(got, own));
    auto const mixed = through(grid, own, {{"residual", false}, {"nested.x", true}});
    EXPECT_TRUE(same(mixed.tensor("residual"), own.tensor("residual")));
    if (!grid.pp.is_first_rank()) {
      std::vector<Tensor> const halves{counting({1000}, 1.F).narrow(0, 0, 500),
                                       counting({1000}, 2.F).narrow(0, 500, 500)};
      EXPECT_TRUE(same(mixed.dict("nested").tensor("x"), concat(halves)));
    }
    world.barrier();
  });
}

TEST(AllGatherRule, refuses_an_indivisible_tensor_on_both_sides) {
  run_thread_ranks(4, [](Collective const& world) {
    Grid const grid(world);
    TensorDict const odd{{"odd", counting({1001})}};
    if (grid.pp.is_first_rank()) {
      EXPECT_THROW(static_cast<void>(through(grid, odd, {{"odd", true}})), UsageError);
    } else {
      try {
        static_cast<void>(through(grid, odd));
        ADD_FAILURE() << "expected an exception";
      } catch (RemoteError const& e) {
        EXPECT_EQ(e.remote_type(), "crossrank::UsageError");
        EXPECT_THAT(e.what(), testing::HasSubstr("odd"));
      }
    }
    EXPECT_TRUE(same_dict(through(grid, batch()), batch()));
    world.barrier();
  });
}

TEST(AllGatherRule, reports_a_receiver_without_the_group_and_stays_in_step) {
  run_thread_ranks(4, [](Collective const& world) {
    Grid const grid(world);
    if (grid.pp.is_first_rank()) {
      grid.pp.send_tensor_dict(batch(), {.all_gather_group = grid.tp});
      grid.pp.send_tensor_dict(batch(2));
    } else {
      EXPECT_THROW(static_cast<void>(grid.pp.recv_tensor_dict()), UsageError);
      EXPECT_TRUE(same_dict(grid.pp.recv_tensor_dict(), batch(2)));
    }
    world.barrier();
  });
}

TEST(AllGatherRule, ignores_overrides_without_a_group) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) group.send_tensor_dict(batch(), {.all_gather_tensors = {{"a", true}, {"big", true}}});
    if (world.rank() == 1) {
      EXPECT_TRUE(same_dict(group.recv_tensor_dict(), batch()));
    }
    world.barrier();
  });
}

TEST(GroupDict, can_be_polled_until_it_has_arrived) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 1) {
      auto coming = group.irecv_tensor_dict();
      EXPECT_FALSE(coming.test());
      world.barrier();
      while (!coming.test()) world.keep_alive();
      EXPECT_TRUE(same_dict(coming.wait(), batch()));
    } else {
      world.barrier();
      auto going = group.isend_tensor_dict(batch());
      going.wait();
    }
    world.barrier();
  });
}

/// Returns dictionary number `i`. Every part of it differs from those of other numbers.
TensorDict numbered(int i) {
  return {{"i", i}, {"small", counting({8}, 1.F, static_cast<float>(i))}, {"big", counting({300 + i, 100}, 1.F)}};
}

TEST(GroupDict, can_be_polled_from_the_last_of_several) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) {
      for (int i = 0; i < 3; ++i) group.send_tensor_dict(numbered(i));
    } else {
      std::vector<TensorDictReceive> coming;
      for (int i = 0; i < 3; ++i) coming.push_back(group.irecv_tensor_dict());
      for (std::size_t i = 3; i-- > 0;) {
        while (!coming[i].test()) world.keep_alive();
        EXPECT_TRUE(same_dict(coming[i].wait(), numbered(static_cast<int>(i))));
      }
    }
    world.barrier();
  });
}

TEST(GroupDict, lets_later_messages_of_the_rank_follow) {
  run_thread_ranks(2, [](Collective const& world) {
    for (bool const device : {false, true}) {
      auto const group = whole(world, {.device_communicator = device});
      if (world.rank() == 0) {
        auto first = group.isend_tensor_dict(numbered(0));
        auto second = group.isend_tensor_dict(numbered(1));
        group.send_object(std::string("behind them"), 1);
        group.send(counting({10}), 1);
        group.send_tensor_dict(numbered(2));
        first.wait();
        second.wait();
      } else {
        auto first = group.irecv_tensor_dict();
        auto second = group.irecv_tensor_dict();
        EXPECT_EQ(group.recv_object<std::string>(0), "behind them");
        EXPECT_TRUE(same(group.recv({10}, Dtype::f32), counting({10})));
        EXPECT_TRUE(same_dict(group.recv_tensor_dict(), numbered(2)));
        EXPECT_TRUE(same_dict(second.wait(), numbered(1)));
        EXPECT_TRUE(same_dict(first.wait(), numbered(0)));
      }
      world.barrier();
    }
  });
}

TEST(GroupDict, fails_alone_and_every_time_it_is_asked) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) {
      EXPECT_THROW(group.send_tensor_dict({{"text", std::string("\xff")}}), UsageError);
      group.send_tensor_dict(numbered(1));
    } else {
      auto failing = group.irecv_tensor_dict();
      auto whole_one = group.irecv_tensor_dict();
      EXPECT_TRUE(same_dict(whole_one.wait(), numbered(1)));
      EXPECT_THROW(static_cast<void>(failing.wait()), RemoteError);
      EXPECT_THROW(static_cast<void>(failing.wait()), RemoteError);
      EXPECT_THROW(static_cast<void>(failing.test()), RemoteError);
    }
    world.barrier();
  });
}

/// The group's own messages end with an error instead of waiting, and never deliver a dictionary as something else.
TEST(GroupDict, is_not_mistaken_for_a_message_or_an_object) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) {
      group.send_tensor_dict({});  // one message
      group.send_tensor_dict({});  // one message
      group.send_object(3, 1);
    } else {
      auto head = Tensor::empty({64}, Dtype::u8);
      EXPECT_THROW(group.cpu_group().recv(head, 0), MismatchError);
      EXPECT_THROW(static_cast<void>(group.cpu_group().recv_object<int>(0)), MismatchError);
      EXPECT_EQ(group.recv_object<int>(0), 3);
    }
    world.barrier();
  });
}

/// The errors say what came and which call receives it, not the library's tags.
TEST(GroupDict, is_named_by_the_error_of_another_receive) {
  run_thread_ranks(2, [](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) {
      group.send_object(5, 1);
      group.send_tensor_dict({});
      group.send_tensor_dict({});
    } else {
      auto const object = error_of<MismatchError>([&] { static_cast<void>(group.recv_tensor_dict()); });
      EXPECT_EQ(object.expected, "a dictionary of 64 bytes");
      EXPECT_EQ(object.got, "an object of 64 bytes");
      EXPECT_THAT(object.hint, testing::HasSubstr("recv_object"));
      auto const dict = error_of<MismatchError>([&] { static_cast<void>(group.recv_object<int>(0)); });
      EXPECT_EQ(dict.expected, "an object of 64 bytes");
      EXPECT_EQ(dict.got, "a dictionary of 64 bytes");
      EXPECT_THAT(dict.hint, testing::HasSubstr("recv_tensor_dict"));
      auto four = Tensor::empty({4}, Dtype::u8);
      auto const plain = error_of<MismatchError>([&] { group.cpu_group().recv(four, 0, {9}); });
      EXPECT_EQ(plain.expected, "4 bytes with tag 9");
      EXPECT_EQ(plain.got, "a dictionary of 64 bytes");
    }
    world.barrier();
  });
}

TEST(GroupDict, fails_on_every_rank_when_it_cannot_be_serialized) {
  TensorDict const bad{{"text", std::string("\xff")}};
  run_thread_ranks(2, [&](Collective const& world) {
    auto const group = whole(world);
    if (world.rank() == 0) {
      EXPECT_THROW(static_cast<void>(group.broadcast_tensor_dict(bad)), UsageError);
      EXPECT_THROW(group.send_tensor_dict(bad), UsageError);
    } else {
      EXPECT_THROW(static_cast<void>(group.broadcast_tensor_dict({})), RemoteError);
      EXPECT_THROW(static_cast<void>(group.recv_tensor_dict()), RemoteError);
    }
    EXPECT_TRUE(same_dict(group.broadcast_tensor_dict(batch()), batch()));
    world.barrier();
  });
}

TEST(TensorDictCodec, refuses_every_truncation_and_survives_any_changed_byte) {
  auto const honest = encode_dict(batch(), [](std::string const&, Tensor const&) { return 1; }).bytes;
  EXPECT_TRUE(same_dict(decode_dict(encode_dict({{"x", 1}}, [](auto const&, auto const&) { return 1; }).bytes).dict,
                        {{"x", 1}}));
  for (std::size_t size = 0; size < honest.size(); ++size)
    EXPECT_THROW(static_cast<void>(decode_dict(std::span(honest).first(size))), FormatError) << size;
  auto longer = honest;
  longer.push_back({});
  EXPECT_THROW(static_cast<void>(decode_dict(longer)), FormatError);
  // There is memory for the tensors of valid dictionaries.
  auto const memory_for = [](Shape const& shape, Dtype dtype, Device::Kind) {
    if (dense_bytes(shape, dtype) > std::size_t{1} << 20) throw UnavailableError({.message = "out of memory"});
    return Tensor::empty(shape, dtype);
  };
  for (std::size_t at = 0; at < honest.size(); ++at) {
    auto bytes = honest;
    bytes[at] ^= std::byte{0x81};
    try {
      static_cast<void>(decode_dict(bytes, memory_for));
    } catch (FormatError const&) {
      continue;
    } catch (UnavailableError const&) {  // a changed byte asked for a huge tensor
      continue;
    }
  }
}

TEST(TensorDictCodec, refuses_impossible_devices) {
  TensorDict const dict{{"K", Tensor::of<float>({1, 2}, {2})}};
  auto const honest = encode_dict(dict, [](auto const&, auto const&) { return 1; }).bytes;
  // The device is behind the only letter of the key and the kind of the value.
  auto const at = std::find(honest.begin(), honest.end(), std::byte{'K'}) - honest.begin() + 2;
  auto const section_of = [&](int device) -> std::string {
    auto bytes = honest;
    bytes[as_size(at)] = static_cast<std::byte>(device);
    try {
      static_cast<void>(decode_dict(bytes));
    } catch (FormatError const& e) {
      return e.section();
    }
    return "none";
  };
  EXPECT_EQ(section_of(0), "none");
  EXPECT_EQ(section_of(1), "tensor") << "the metadata contains no bytes of a tensor on a device";
  EXPECT_EQ(section_of(2), "device");
}

TEST(TensorDictCodec, refuses_dictionaries_nested_too_deeply) {
  TensorDict dict;
  for (int i = 0; i < 70; ++i) {
    TensorDict outer;
    outer.set("d", std::move(dict));
    dict = std::move(outer);
  }
  EXPECT_THROW(static_cast<void>(encode_dict(dict, [](auto const&, auto const&) { return 1; })), UsageError);
}

}  // namespace
}  // namespace crossrank::test
