#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Non-blocking calls.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

Tensor filled(std::int64_t count, std::int32_t value) {
  auto tensor = Tensor::empty({count}, Dtype::i32);
  std::ranges::fill(tensor.as_mutable<std::int32_t>(), value);
  return on_device(tensor);
}

bool all_are(Tensor const& tensor, std::int32_t value) {
  auto const host = on_host(tensor);
  return std::ranges::all_of(host.as<std::int32_t>(), [&](auto v) { return v == value; });
}

/// Several long and short calls are pending at once. Each rank waits for them in a different order.
void requests_complete_in_any_order(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  std::int32_t const sum = n * (n + 1) / 2;
  constexpr std::int64_t long_one = 400'000;
  auto first = filled(long_one, world.rank() + 1);
  auto second = filled(10, world.rank() == n - 1 ? 77 : 0);
  auto const part = filled(long_one, world.rank());
  auto third = on_device(Tensor::zeros({n, long_one}, Dtype::i32));
  std::vector<Request> requests;
  requests.push_back(world.iall_reduce(first));
  requests.push_back(world.ibroadcast(second, {n - 1}));
  requests.push_back(world.iall_gather(third, part));
  requests.push_back(world.ibarrier());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    auto& request = requests[(i + as_size(world.rank())) % requests.size()];
    if (i % 2 == 0) {
      request.wait();
    } else {
      EXPECT_TRUE(request.wait_for(std::chrono::seconds(20)));
    }
  }
  EXPECT_TRUE(all_are(first, sum));
  EXPECT_TRUE(all_are(second, 77));
  for (int rank = 0; rank < n; ++rank) EXPECT_TRUE(all_are(third.narrow(0, rank, 1), rank));
  EXPECT_TRUE(requests.front().test());  // stays true once the request has completed
}

/// Tensors of different lengths, one of them empty, apart in memory and as views of one buffer.
void fused_calls_treat_each_tensor(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  std::int32_t const sum = n * (n + 1) / 2;
  std::vector<Tensor> apart{filled(3, world.rank() + 1), filled(0, 0), filled(300'000, 2 * (world.rank() + 1))};
  world.iall_reduce(apart).wait();
  EXPECT_TRUE(all_are(apart[0], sum));
  EXPECT_TRUE(all_are(apart[2], 2 * sum));
  auto whole = filled(10, world.rank() + 1);
  std::vector<Tensor> views{whole.narrow(0, 0, 4), whole.narrow(0, 4, 6)};
  world.iall_reduce(views, ReduceOp::max).wait();
  EXPECT_TRUE(all_are(whole, n));

  std::vector<Tensor> const parts{filled(2, world.rank()), filled(5, 100 + world.rank())};
  std::vector<Tensor> gathered{on_device(Tensor::zeros({n, 2}, Dtype::i32)),
                               on_device(Tensor::zeros({n, 5}, Dtype::i32))};
  world.iall_gather(gathered, parts).wait();
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_TRUE(all_are(gathered[0].narrow(0, rank, 1), rank));
    EXPECT_TRUE(all_are(gathered[1].narrow(0, rank, 1), 100 + rank));
  }
  std::vector<Tensor> outs{filled(2, 0), filled(5, 0)};
  world.ireduce_scatter(outs, gathered).wait();
  EXPECT_TRUE(all_are(outs[0], n * world.rank()));
  EXPECT_TRUE(all_are(outs[1], n * (100 + world.rank())));
}

void fused_calls_reject_invalid_lists(ConformanceRank& self) {
  auto& world = self.world;
  std::vector<Tensor> none;
  EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(world.iall_reduce(none)); }).message, HasSubstr("empty"));
  std::vector<Tensor> mixed{filled(2, 0), on_device(Tensor::zeros({2}, Dtype::f32))};
  auto const info = error_of<UsageError>([&] { static_cast<void>(world.iall_reduce(mixed)); });
  EXPECT_THAT(info.message, HasSubstr("tensor 1 has another dtype"));
  EXPECT_EQ(info.got, "F32");
  std::vector<Tensor> const inputs{filled(2, 0)};
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(world.iall_gather(mixed, inputs)); }).got, "2");
  std::vector<Tensor> short_one{filled(2 * world.world_size() + 1, 0)};
  EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(world.iall_gather(short_one, inputs)); }).message,
              HasSubstr("do not fit"));
  world.barrier();
}

void fused_calls_of_different_shapes_are_reported(ConformanceRank& self) {
  auto& world = self.world;
  std::vector<Tensor> tensors{filled(world.rank() == 1 ? 3 : 2, 0), filled(world.rank() == 1 ? 2 : 3, 0)};
  EXPECT_THAT(error_of<MismatchError>([&] { world.iall_reduce(tensors).wait(); }).failed_ranks, testing::SizeIs(1));
}

/// A limit that overflows when converted to nanoseconds must not become negative.
void a_wait_with_a_huge_limit_waits(ConformanceRank& self) {
  auto& world = self.world;
  auto values = filled(500'000, 1);
  auto request = world.iall_reduce(values);
  EXPECT_TRUE(request.wait_for(std::chrono::milliseconds::max()));
  EXPECT_TRUE(all_are(values, world.world_size()));
  auto late = world.ibarrier();
  static_cast<void>(late.wait_for(std::chrono::milliseconds::min()));  // looks once
  late.wait();
}

/// A rank waits for a message. The sender first waits for a collective that the receiver has only started.
void waiting_for_a_message_progresses_collectives(ConformanceRank& self) {
  auto& world = self.world;
  auto values = filled(500'000, 1);
  auto token = on_device(Tensor::scalar<std::int32_t>(5));
  auto request = world.iall_reduce(values);
  if (world.rank() == 0) {
    request.wait();
    for (int peer = 1; peer < world.world_size(); ++peer) world.send(token, peer);
  } else {
    auto got = on_device(Tensor::scalar<std::int32_t>(0));
    world.recv(got, 0);
    EXPECT_EQ(on_host(got).item<std::int32_t>(), 5);
    request.wait();
  }
  EXPECT_TRUE(all_are(values, world.world_size()));
}

void a_blocking_call_completes_earlier_requests(ConformanceRank& self) {
  auto& world = self.world;
  auto values = filled(300'000, 2);
  auto request = world.iall_reduce(values);
  world.barrier();
  EXPECT_TRUE(request.test());
  EXPECT_TRUE(all_are(values, 2 * world.world_size()));
}

void pending_messages_reach_their_receiver(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  int const next = (world.rank() + 1) % n;
  int const before = (world.rank() + n - 1) % n;
  std::vector<Tensor> in;
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 6; ++i) {
    in.push_back(filled(1000, 0));
    requests.push_back(world.irecv(in.back(), before, {.tag = static_cast<std::uint32_t>(i)}));
  }
  for (std::int32_t i = 0; i < 6; ++i)
    requests.push_back(world.isend(filled(1000, world.rank() * 10 + i), next, {.tag = static_cast<std::uint32_t>(i)}));
  for (auto& request : requests) request.wait();
  for (std::int32_t i = 0; i < 6; ++i) EXPECT_TRUE(all_are(in[as_size(i)], before * 10 + i));
}

/// More than the ring of any backend takes; their cost may not grow faster than their number.
void thousands_of_sends_may_be_pending(ConformanceRank& self) {
  auto& world = self.world;
  constexpr std::int32_t count = 3000;
  int const n = world.world_size();
  int const before = (world.rank() + n - 1) % n;
  std::vector<Request> sends;
  for (std::int32_t i = 0; i < count; ++i) sends.push_back(world.isend(filled(2, i), (world.rank() + 1) % n));
  for (std::int32_t i = 0; i < count; ++i) {
    auto got = filled(2, -1);
    world.recv(got, before);
    ASSERT_TRUE(all_are(got, i));
  }
  for (auto& send : sends) send.wait();
}

void an_expired_limit_has_no_other_effect(ConformanceRank& self) {
  auto& world = self.world;
  auto got = filled(3, 0);
  if (world.rank() == 0) {
    auto request = world.irecv(got, 1);
    EXPECT_FALSE(request.wait_for(std::chrono::milliseconds(5)));
    EXPECT_FALSE(request.test());
    world.barrier();
    request.wait();
    EXPECT_TRUE(all_are(got, 8));
  } else {
    world.barrier();
    if (world.rank() == 1) world.send(filled(3, 8), 0);
  }
}

void a_cancelled_message_request_has_no_effect(ConformanceRank& self) {
  auto& world = self.world;
  if (world.rank() == 0) {
    auto got = filled(4, 0);
    world.irecv(got, 1).cancel();
    static_cast<void>(world.irecv(got, 1));  // dropping the request cancels it
    world.barrier();
    world.recv(got, 1);
    EXPECT_TRUE(all_are(got, 9));
  } else {
    world.barrier();
    if (world.rank() == 1) world.send(filled(4, 9), 0);
  }
}

constexpr int beyond_depth = 20;  // more messages than a channel holds

/// Rank 0 sends rank 1 more messages than a channel holds. One of them starts them all and waits for something else.
/// The other sends or receives them one by one before it joins that wait.
void exchange_while_waiting(Collective const& group, bool sender_waits, std::function<void()> const& something_else) {
  std::vector<Tensor> messages;
  for (int i = 0; i < beyond_depth; ++i) messages.push_back(filled(3, group.rank() == 0 ? i : -1));
  std::vector<Request> requests;
  for (auto& message : messages) {
    if (group.rank() == 0) {
      auto request = group.isend(message, 1);
      if (sender_waits) {
        requests.push_back(std::move(request));
      } else {
        request.wait();
      }
    } else if (group.rank() == 1) {
      auto request = group.irecv(message, 0);
      if (sender_waits) {
        request.wait();
      } else {
        requests.push_back(std::move(request));
      }
    }
  }
  something_else();
  for (auto& request : requests) request.wait();
  for (int i = 0; i < beyond_depth && group.rank() == 1; ++i) EXPECT_TRUE(all_are(messages[as_size(i)], i)) << i;
}

void messages_progress_while_their_rank_waits_for_something_else(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  auto large = filled(20'000, 1);
  for (bool const sender_waits : {true, false}) {
    exchange_while_waiting(world, sender_waits, [&] { world.barrier(); });
    exchange_while_waiting(world, sender_waits, [&] { other.barrier(); });
    exchange_while_waiting(world, sender_waits, [&] { world.all_reduce(large); });
    exchange_while_waiting(world, sender_waits, [&] { other.iall_reduce(large).wait(); });
    exchange_while_waiting(world, sender_waits, [&] { static_cast<void>(other.split_by(0)); });
  }
}

/// Each rank waits for calls of two groups in a different order. Calls that a rank does not wait for yet still
/// progress.
void calls_of_other_groups_progress_while_a_rank_waits(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  auto a = filled(150'000, 1);
  auto b = filled(150'000, 2);
  auto first = world.iall_reduce(a);
  auto second = other.iall_reduce(b);
  if (world.rank() % 2 == 0) {
    first.wait();
    second.wait();
  } else {
    second.wait();
    first.wait();
  }
  EXPECT_TRUE(all_are(a, world.world_size()));
  EXPECT_TRUE(all_are(b, 2 * world.world_size()));
  if (world.rank() == 0) {
    auto request = world.iall_reduce(a);
    other.barrier();
    request.wait();
  } else {
    world.all_reduce(a);
    other.barrier();
  }
}

/// As above, for a wait with a limit, and for a message behind a collective of its own group.
void calls_of_other_groups_progress_while_a_rank_waits_for_a_message(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  for (bool const with_limit : {true, false}) {
    auto values = filled(150'000, 1);
    auto message = filled(4, 0);
    auto reduction = other.iall_reduce(values);
    if (world.rank() == 0) {
      auto barrier = with_limit ? Request() : world.ibarrier();
      auto receive = world.irecv(message, 1);
      while (with_limit && !receive.wait_for(std::chrono::milliseconds(20))) {
      }
      receive.wait();
      reduction.wait();
      barrier.wait();
      EXPECT_TRUE(all_are(message, 5));
    } else {
      reduction.wait();
      if (world.rank() == 1) world.send(filled(4, 5), 0);
      if (!with_limit) world.barrier();
    }
    EXPECT_TRUE(all_are(values, world.world_size()));
  }
}

/// A request is waited for after its group was closed and its sender has left. A message that has arrived is delivered.
/// One that has not will never come, and the wait ends at once.
void a_pending_message_ends_with_its_group(ConformanceRank& self) {
  auto& world = self.world;
  auto group = world.split_by(0);
  int const rank = group.rank();
  auto early = filled(4, 0);
  auto never = filled(4, 0);
  std::vector<Request> receives;
  std::vector<Request> sends;
  if (rank == 0) {
    receives.push_back(group.irecv(early, 1));
    receives.push_back(group.irecv(never, 1));
  } else if (rank == 1) {
    group.send(filled(4, 6), 0);
  } else if (rank == 2) {
    for (int i = 0; i < 10; ++i) sends.push_back(group.isend(filled(4, i), 0));
  }
  group.barrier();
  group.close();
  // The memory of the sender is reused for other messages.
  if (rank == 1) group = Collective();
  auto const again = world.split_by(0);
  if (rank == 1) {
    for (int i = 0; i < 8; ++i) again.send(filled(4, 7), 0);
  }
  world.barrier();
  if (!receives.empty()) {
    receives[0].wait();
    EXPECT_TRUE(all_are(early, 6));
    for (int wait = 0; wait < 2; ++wait)
      EXPECT_THAT(error_of<UsageError>([&] { receives[1].wait(); }).message, HasSubstr("closed"));
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (i < 8) {
      sends[i].wait();
    } else {
      EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(sends[i].test()); }).operation, "send");
    }
  }
  world.barrier();
}

void a_dropped_collective_request_ends_the_group(ConformanceRank& self) {
  auto& world = self.world;
  auto values = filled(400'000, 1);
  if (world.rank() == 0) {
    { auto request = world.iall_reduce(values); }
    auto const info = error_of<PeerLostError>([&] { world.barrier(); });
    EXPECT_THAT(info.message, HasSubstr("dropped the Request of its iall_reduce"));
  } else {
    auto const info = error_of<PeerLostError>([&] {
      world.all_reduce(values);
      world.barrier();
    });
    EXPECT_THAT(info.failed_ranks, testing::ElementsAre(0));
    EXPECT_THAT(info.message, HasSubstr("rank 0 dropped the Request of its iall_reduce"));
  }
}

/// Assigning another request drops the old one. A request that waits behind others and has not begun is dropped too.
void a_replaced_request_is_dropped(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  auto values = filled(400'000, 1);
  auto others = filled(400'000, 1);
  if (world.rank() != 0) other.barrier();  // so that the call cannot complete before rank 0 drops it
  auto const reduce_twice = [&] {
    auto first = world.iall_reduce(values);
    auto second = world.ireduce(others);
    if (world.rank() == 0) {
      second = Request();
      other.barrier();
    }
    first.wait();
    second.wait();
  };
  EXPECT_THAT(error_of<PeerLostError>(reduce_twice).message, HasSubstr("rank 0 dropped the Request of its ireduce"));
}

/// Rank 0 drops the request while another of its threads waits in a call of the group, which carries the request out.
void a_request_is_dropped_during_a_call_of_another_thread(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  auto values = filled(400'000, 1);
  if (world.rank() != 0) {
    other.barrier();
    EXPECT_THROW(world.all_reduce(values), PeerLostError);
    return;
  }
  auto first = world.iall_reduce(values);
  auto second = world.ibarrier();
  std::string message;
  std::thread waiter([&] {
    while (message.empty()) {
      try {
        second.wait();
        message = "no error";
      } catch (UsageError const&) {  // this rank's other thread is dropping the request just now
      } catch (PeerLostError const& e) {
        message = e.info().message;
      }
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // most likely it waits then; both orders must work
  first = Request();
  values = Tensor();
  waiter.join();
  EXPECT_THAT(message, HasSubstr("dropped the Request of its iall_reduce"));
  other.barrier();
}

void a_cancelled_request_is_reported(ConformanceRank& self) {
  auto& world = self.world;
  auto const other = world.split_by(0);
  auto values = filled(400'000, 1);
  if (world.rank() != 0) other.barrier();
  auto const reduce = [&] {
    auto request = world.iall_reduce(values);
    if (world.rank() == 0) {
      request.cancel();
      other.barrier();
      world.barrier();
    }
    request.wait();
  };
  EXPECT_THAT(error_of<PeerLostError>(reduce).message, HasSubstr("rank 0 cancelled its iall_reduce"));
}

/// A caller that waits in slices has the group's timeout for all of them. The late rank is in another call.
void repeated_waits_time_out_together(ConformanceRank& self) {
  auto const& world = self.world;
  auto const hasty = make_collective(world.transport(), {.timeout = std::chrono::milliseconds(300)});
  world.barrier();
  auto value = Tensor::zeros({1}, Dtype::i32);
  if (world.rank() == 1) {
    error_of<TimeoutError>([&] { world.recv(value, 0); });
    return;
  }
  auto request = hasty.ibarrier();
  int slices = 0;
  auto const late = error_of<TimeoutError>([&] {
    while (!request.wait_for(std::chrono::milliseconds(20))) ++slices;
  });
  EXPECT_GT(slices, 2);
  EXPECT_EQ(late.failed_ranks, std::vector{1}) << late.message;
  EXPECT_FALSE(late.group_usable);
}

/// The late rank is in another call.
void a_call_can_have_a_shorter_timeout_than_its_group(ConformanceRank& self) {
  auto const& world = self.world;
  auto value = Tensor::zeros({1}, Dtype::i32);
  if (world.rank() == 1) {
    error_of<TimeoutError>([&] { world.recv(value, 0); });
    return;
  }
  auto request = world.ibarrier();
  request.set_timeout(std::chrono::milliseconds(300));
  auto const late = error_of<TimeoutError>([&] { request.wait(); });
  EXPECT_EQ(late.failed_ranks, std::vector{1}) << late.message;
}

/// The other rank comes once the first one has waited for longer than the group's timeout.
void a_call_can_have_a_longer_timeout_than_its_group(ConformanceRank& self) {
  auto const& world = self.world;
  auto const hasty = make_collective(world.transport(), {.timeout = std::chrono::milliseconds(300)});
  auto value = Tensor::zeros({1}, Dtype::i32);
  if (world.rank() == 1) world.recv(value, 0);
  auto request = hasty.ibarrier();
  request.set_timeout(std::chrono::minutes(5));
  if (world.rank() == 0) {
    for (int i = 0; i < 40; ++i) EXPECT_FALSE(request.wait_for(std::chrono::milliseconds(20)));
    world.send(value, 1);
  }
  request.wait();
}

/// A rank that is late but makes progress is waited for, in slices, and in a receive beside a pending collective.
void waits_see_that_a_late_rank_is_alive(ConformanceRank& self) {
  auto& world = self.world;
  auto const hasty = make_collective(world.transport(), {.timeout = std::chrono::milliseconds(800)});
  world.barrier();
  auto sum = filled(4, 1);
  auto value = filled(1, 5);
  if (world.rank() == 1) {
    for (int i = 0; i < 20; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      world.keep_alive();
    }
    world.all_reduce(sum);
    for (int rank = 0; rank < world.world_size(); ++rank) {
      if (rank != 1) world.send(value, rank);
    }
  } else {
    auto request = hasty.iall_reduce(sum);
    if (world.rank() % 2 == 0) hasty.recv(value, 1);
    while (!request.wait_for(std::chrono::milliseconds(20))) continue;
    if (world.rank() % 2 != 0) hasty.recv(value, 1);
  }
  EXPECT_TRUE(all_are(sum, world.world_size()));
  EXPECT_TRUE(all_are(value, 5));
  world.barrier();
}

/// A rank whose `close` fails may be ahead of its peers, which still read what it has sent.
void a_failed_close_keeps_what_peers_read(ConformanceRank& self) {
  auto& world = self.world;
  std::vector<int> all(as_size(world.world_size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> singles;
  for (int const rank : all) singles.push_back({rank});
  auto group = world.split({all});
  auto const alone = world.split(singles);
  constexpr std::int64_t count = 16'384;
  auto value = filled(count, world.rank() == 0 ? 1 : 0);
  if (world.rank() == 0) {
    auto hasty = make_collective(group.transport(), {.timeout = std::chrono::milliseconds(200)});
    hasty.broadcast(value);
    EXPECT_THROW(hasty.close(), Error);
    hasty = {};
    group = {};
    auto other = filled(count, 7);
    for (int i = 0; i < 40; ++i) alone.broadcast(other);
    return;
  }
  auto request = group.ibroadcast(value);
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  try {
    request.wait();
    EXPECT_TRUE(all_are(value, 1));
  } catch (Error const&) {  // the group has failed, which is as good
  }
}

constexpr ConformanceCase requests_list[] = {
    {"waits_see_that_a_late_rank_is_alive", waits_see_that_a_late_rank_is_alive, 2, false},
    {"a_failed_close_keeps_what_peers_read", a_failed_close_keeps_what_peers_read, 2, true},
    {"requests_complete_in_any_order", requests_complete_in_any_order, 1, false, OnDevices::yes},
    {"fused_calls_treat_each_tensor", fused_calls_treat_each_tensor, 1, false, OnDevices::yes},
    {"fused_calls_reject_invalid_lists", fused_calls_reject_invalid_lists, 1, false, OnDevices::yes},
    {"fused_calls_of_different_shapes_are_reported", fused_calls_of_different_shapes_are_reported, 3, true,
     OnDevices::compared},
    {"a_wait_with_a_huge_limit_waits", a_wait_with_a_huge_limit_waits, 1, false, OnDevices::yes},
    {"waiting_for_a_message_progresses_collectives", waiting_for_a_message_progresses_collectives, 2, false,
     OnDevices::yes},
    {"a_blocking_call_completes_earlier_requests", a_blocking_call_completes_earlier_requests},
    {"pending_messages_reach_their_receiver", pending_messages_reach_their_receiver, 1, false, OnDevices::yes},
    {"thousands_of_sends_may_be_pending", thousands_of_sends_may_be_pending, 2, false},
    {"an_expired_limit_has_no_other_effect", an_expired_limit_has_no_other_effect, 2, false, OnDevices::yes},
    {"a_cancelled_message_request_has_no_effect", a_cancelled_message_request_has_no_effect, 2, false, OnDevices::yes},
    {"messages_progress_while_their_rank_waits_for_something_else",
     messages_progress_while_their_rank_waits_for_something_else, 2, false, OnDevices::yes},
    {"calls_of_other_groups_progress_while_a_rank_waits", calls_of_other_groups_progress_while_a_rank_waits, 2, false,
     OnDevices::yes},
    {"calls_of_other_groups_progress_while_a_rank_waits_for_a_message",
     calls_of_other_groups_progress_while_a_rank_waits_for_a_message, 2, false, OnDevices::yes},
    {"a_pending_message_ends_with_its_group", a_pending_message_ends_with_its_group, 2, false, OnDevices::yes},
    {"a_dropped_collective_request_ends_the_group", a_dropped_collective_request_ends_the_group, 2, true,
     OnDevices::compared},
    {"a_replaced_request_is_dropped", a_replaced_request_is_dropped, 2, true, OnDevices::compared},
    {"a_request_is_dropped_during_a_call_of_another_thread", a_request_is_dropped_during_a_call_of_another_thread, 2,
     true, OnDevices::compared},
    {"a_cancelled_request_is_reported", a_cancelled_request_is_reported, 2, true, OnDevices::compared},
    {"repeated_waits_time_out_together", repeated_waits_time_out_together, 2, true},
    {"a_call_can_have_a_shorter_timeout_than_its_group", a_call_can_have_a_shorter_timeout_than_its_group, 2, true},
    {"a_call_can_have_a_longer_timeout_than_its_group", a_call_can_have_a_longer_timeout_than_its_group, 2},
};

}  // namespace

std::span<ConformanceCase const> request_cases() { return requests_list; }

}  // namespace crossrank::test
