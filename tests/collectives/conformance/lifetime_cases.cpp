#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <crossrank/objects.hpp>

#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Closing, connecting again, several threads, several jobs.
namespace crossrank::test {
namespace {

using testing::HasSubstr;

void a_closed_group_refuses_calls_by_name(ConformanceRank& self) {
  auto group = self.world.split_by(0);
  auto const copy = group;
  auto const transport = group.transport();
  group.close();
  group.close();
  auto tensor = Tensor::scalar<std::int32_t>(1);
  for (auto const& info :
       {error_of<UsageError>([&] { group.barrier(); }), error_of<UsageError>([&] { copy.barrier(); }),
        error_of<UsageError>([&] { static_cast<void>(transport->post_barrier({.op_kind = spi::OpKind::barrier})); })}) {
    EXPECT_EQ(info.operation, "barrier");
    EXPECT_THAT(info.message, HasSubstr("closed"));
    EXPECT_EQ(info.hint, "keep the group open until its last call");
    EXPECT_THAT(info.group, HasSubstr("world/"));
  }
  error_of<UsageError>([&] { static_cast<void>(transport->post_send({.bytes = tensor.bytes()}, 0, 0)); });
  error_of<UsageError>([&] { static_cast<void>(transport->post_recv({.bytes = tensor.mutable_bytes()}, 0, 0)); });
  error_of<UsageError>([&] { static_cast<void>(group.split_by(0)); });
  error_of<UsageError>([&] { static_cast<void>(group.rank()); });
  EXPECT_TRUE(transport->is_closed());
  self.world.barrier();
}

void a_second_connect_returns_the_same_job(ConformanceRank& self) {
  auto const again = connect(self.options);
  EXPECT_EQ(again.transport(), self.world.transport());
  again.barrier();
  Collective::CallLock const busy(self.world, "a test");
  error_of<UsageError>([&] { again.barrier(); });
}

void a_second_connect_refuses_another_job_under_the_same_id(ConformanceRank& self) {
  auto other_size = self.options;
  other_size.world_size = self.world.world_size() + 1;
  EXPECT_THAT(error_of<UsageError>([&] { static_cast<void>(connect(other_size)); }).message,
              HasSubstr("another number of ranks"));
  if (self.world.backend() == "fake") return;  // a job of one rank beside the launcher's is allowed
  auto other_backend = self.options;
  other_backend.backend = self.world.backend() == "shm" ? "mpi" : "shm";
  auto const info = error_of<UsageError>([&] { static_cast<void>(connect(other_backend)); });
  EXPECT_THAT(info.message, HasSubstr("another backend"));
  EXPECT_EQ(info.expected, self.world.backend());
  EXPECT_EQ(info.got, other_backend.backend);
  self.world.barrier();
}

void a_job_can_be_joined_again_after_it_was_closed(ConformanceRank& self) {
  auto first = connect(self.options);
  auto const& old = first.transport();
  for (int i = 0; i < 3; ++i) {
    auto options = self.options;
    options.job_id += "-again";
    auto world = connect(options);
    std::vector<std::uint64_t> ones(100, 1);
    world.all_reduce(std::span(ones));
    EXPECT_EQ(ones.back(), static_cast<std::uint64_t>(world.world_size()));
    world.close();
  }
  EXPECT_EQ(old, self.world.transport());
}

/// Two threads call one group at the same time. One of them gets an error, and the other is not affected.
void concurrent_calls_on_one_group_are_refused(ConformanceRank& self) {
  auto const& world = self.world;
  auto const signal = world.split_by(0);
  if (world.rank() != 0) {
    signal.barrier();
    world.barrier();
    return;
  }
  std::atomic<int> refused{0};
  auto const call = [&] {
    try {
      world.barrier();
    } catch (UsageError const& e) {
      EXPECT_EQ(e.operation(), "barrier");
      ++refused;
      signal.barrier();  // the others arrive only now
    }
  };
  std::thread other(call);
  call();
  other.join();
  EXPECT_EQ(refused, 1);
}

void two_threads_use_two_groups_at_once(ConformanceRank& self) {
  auto const& world = self.world;
  std::vector<Collective> groups{world.split_by(0), world.split_by(0)};
  auto const ranks = static_cast<std::uint64_t>(world.world_size());
  auto const work = [&](std::size_t which) {
    auto const& group = groups[which];
    for (std::uint64_t i = 0; i < 60; ++i) {
      std::vector<std::uint64_t> values(i % 2 == 0 ? 5 : 600, i + which);
      group.all_reduce(std::span(values));
      ASSERT_EQ(values.back(), ranks * (i + which));
    }
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
}

void two_jobs_do_not_disturb_each_other(ConformanceRank& self) {
  auto options = self.options;
  options.job_id += "-second";
  auto second = connect(options);
  EXPECT_NE(second.transport(), self.world.transport());
  auto const ranks = static_cast<std::uint64_t>(self.world.world_size());
  for (std::uint64_t i = 0; i < 20; ++i) {
    std::vector<std::uint64_t> a(200, i);
    std::vector<std::uint64_t> b(200, i + 1);
    self.world.all_reduce(std::span(a));
    second.all_reduce(std::span(b));
    EXPECT_EQ(a.back(), ranks * i);
    EXPECT_EQ(b.back(), ranks * (i + 1));
  }
  second.abort("the second job ends badly");
  error_of<PeerLostError>([&] { second.barrier(); });
  self.world.barrier();
}

using NamedCall = std::pair<char const*, std::function<void(Collective&)>>;

/// Calls that are composed of other calls.
std::vector<NamedCall> composed_calls() {
  auto const zeros = [](std::int64_t count) { return Tensor::zeros({count}, Dtype::f32); };
  auto const whole = [zeros](Collective const& group) { return zeros(group.world_size()); };
  auto const next = [](Collective const& group) { return (group.rank() + 1) % group.world_size(); };
  return {
      {"all_gather",
       [=](Collective& group) {
         auto out = whole(group);
         group.all_gather(out, zeros(1));
       }},
      {"all_gather",
       [=](Collective& group) {
         auto out = whole(group);
         group.iall_gather(out, zeros(1)).wait();
       }},
      {"gather",
       [=](Collective& group) {
         auto out = whole(group);
         group.gather(out, zeros(1));
       }},
      {"scatter",
       [=](Collective& group) {
         auto out = zeros(1);
         group.scatter(out, whole(group));
       }},
      {"all_to_all",
       [=](Collective& group) {
         auto out = whole(group);
         group.all_to_all(out, whole(group));
       }},
      {"reduce_scatter",
       [=](Collective& group) {
         auto out = zeros(1);
         group.reduce_scatter(out, whole(group));
       }},
      {"split_by", [](Collective& group) { static_cast<void>(group.split_by(0)); }},
      {"broadcast_object", [](Collective& group) { static_cast<void>(group.broadcast_object(1)); }},
      {"all_gather_objects", [](Collective& group) { static_cast<void>(group.all_gather_objects(1)); }},
      {"gather_objects", [](Collective& group) { static_cast<void>(group.gather_objects(1)); }},
      {"send_object", [=](Collective& group) { group.send_object(1, next(group)); }},
      {"recv_object", [=](Collective& group) { static_cast<void>(group.recv_object<int>(next(group))); }},
  };
}

void errors_name_the_call_that_the_user_made(ConformanceRank& self) {
  auto dead = self.world.split_by(0);
  dead.abort("enough");
  for (auto const& [name, call] : composed_calls()) {
    auto const& one = call;
    EXPECT_EQ(error_of<PeerLostError>([&] { one(dead); }).operation, name);
  }
  self.world.barrier();
  auto closed = self.world.split_by(0);
  closed.close();
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(closed.split_by(0)); }).operation, "split_by");
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(closed.broadcast_object(1)); }).operation, "broadcast_object");
  EXPECT_EQ(error_of<UsageError>([&] { static_cast<void>(closed.all_gather_objects(1)); }).operation,
            "all_gather_objects");
  EXPECT_EQ(error_of<UsageError>([&] { closed.send_object(1, 0); }).operation, "send_object");
}

constexpr ConformanceCase lifetime_list[] = {
    {"errors_name_the_call_that_the_user_made", errors_name_the_call_that_the_user_made},
    {"a_closed_group_refuses_calls_by_name", a_closed_group_refuses_calls_by_name},
    {"a_second_connect_returns_the_same_job", a_second_connect_returns_the_same_job},
    {"a_second_connect_refuses_another_job_under_the_same_id", a_second_connect_refuses_another_job_under_the_same_id},
    {"a_job_can_be_joined_again_after_it_was_closed", a_job_can_be_joined_again_after_it_was_closed},
    {"concurrent_calls_on_one_group_are_refused", concurrent_calls_on_one_group_are_refused, 2},
    {"two_threads_use_two_groups_at_once", two_threads_use_two_groups_at_once},
    {"two_jobs_do_not_disturb_each_other", two_jobs_do_not_disturb_each_other},
};

}  // namespace

std::span<ConformanceCase const> lifetime_cases() { return lifetime_list; }

}  // namespace crossrank::test
