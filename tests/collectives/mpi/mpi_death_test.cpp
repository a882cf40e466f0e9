#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/message_queue.hpp>

/// Run by an mpirun that lets survivors live. The last ranks are killed, and all others get the same error, whatever
/// they wait for. Each ctest names one case, because a job can lose its ranks only once.
namespace crossrank::test {
namespace {

constexpr auto deadline = std::chrono::seconds(6);
constexpr auto slack_of_a_busy_host = std::chrono::seconds(120);  // the guarantee is the deadline plus a second

std::string text_of_variable(char const* name, std::string otherwise) {
  auto const* const text = std::getenv(name);
  return text == nullptr ? std::move(otherwise) : text;
}

ConnectOptions job(std::string id) {
  return {.backend = text_of_variable("CROSSRANK_TEST_BACKEND", "composite"),
          .timeout = deadline,
          .connect_timeout = std::chrono::minutes(5),
          .job_id = std::move(id),
          .arena_cap = std::uint64_t{64} << 20};
}

/// The part of one rank in an operation that needs all ranks.
struct Work {
  std::string_view name;
  void (*call)(Collective& world, int doomed);
};

Tensor block(std::int64_t elements) { return Tensor::zeros({elements}, Dtype::f32); }

std::int64_t parts(Collective const& world) { return world.world_size() * std::int64_t{40'000}; }

void barrier(Collective& world, int) { world.barrier(); }

void broadcast(Collective& world, int) {
  auto tensor = block(1'000'000);
  world.broadcast(tensor);
}

void broadcast_from_the_dead(Collective& world, int doomed) {
  auto tensor = block(1'000'000);
  world.broadcast(tensor, {doomed});
}

void all_reduce(Collective& world, int) {
  auto tensor = block(500'000);
  world.all_reduce(tensor);
}

void reduce(Collective& world, int) {
  auto tensor = block(10);
  world.reduce(tensor);
}

void all_gather(Collective& world, int) {
  auto out = block(parts(world));
  world.all_gather(out, block(40'000));
}

void gather(Collective& world, int) {
  auto out = world.rank() == 0 ? block(parts(world)) : Tensor();
  world.gather(out, block(40'000));
}

void scatter(Collective& world, int) {
  auto out = block(40'000);
  world.scatter(out, world.rank() == 0 ? block(parts(world)) : Tensor());
}

void reduce_scatter(Collective& world, int) {
  auto out = block(40'000);
  world.reduce_scatter(out, block(parts(world)));
}

void all_to_all(Collective& world, int) {
  auto out = block(parts(world));
  world.all_to_all(out, block(parts(world)));
}

/// The first rank waits for a message of the dead rank, and the others wait for the first.
void recv(Collective& world, int doomed) {
  auto token = Tensor::scalar<std::int32_t>(0);
  if (world.rank() == doomed) world.send(token, 0);
  if (world.rank() == 0) world.recv(token, doomed);
  world.barrier();
}

/// The first rank waits for a message of any rank, and the others wait for the first.
void recv_any(Collective& world, int doomed) {
  auto token = Tensor::scalar<std::int32_t>(0);
  if (world.rank() == doomed) world.send(token, 0);
  if (world.rank() == 0) world.recv_any(token);
  world.barrier();
}

/// The first rank sends more than fits on the way to the dead rank.
void send(Collective& world, int doomed) {
  auto much = block(3'000'000);
  if (world.rank() == 0) world.send(much, doomed);
  if (world.rank() == doomed) world.recv(much, 0);
  world.barrier();
}

void object(Collective& world, int) { static_cast<void>(world.broadcast_object(Json{{"step", 1}}, {0})); }

void split(Collective& world, int) { static_cast<void>(world.split_by(world.rank() % 2)); }

void close(Collective& world, int) { world.split_by(0).close(); }

void tensors(Collective& world, int) { get_tensors_parallel(block(100'000), world).close(); }

void configs(Collective& world, int) {
  RankState state;
  state.config = {{"rank", world.rank()}};
  state.weights.insert_or_assign("w", block(100'000));
  auto states = get_configs_parallel(state, world);
  int next = 0;
  for (auto const& item : states) EXPECT_EQ(item.rank, next++);
  states.close();
}

/// A program that asks for the result again and again, without a deadline.
void poll(Request request) {
  while (!request.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void poll_all_reduce(Collective& world, int) {
  auto tensor = block(500'000);
  poll(world.iall_reduce(tensor));
}

void poll_recv(Collective& world, int doomed) {
  auto token = Tensor::scalar<std::int32_t>(0);
  if (world.rank() != doomed) return poll(world.irecv(token, doomed));
  for (int rank = 0; rank < doomed; ++rank) world.send(token, rank);
}

constexpr Work works[] = {
    {"barrier", barrier},
    {"broadcast", broadcast},
    {"broadcast_from_the_dead", broadcast_from_the_dead},
    {"all_reduce", all_reduce},
    {"reduce", reduce},
    {"all_gather", all_gather},
    {"gather", gather},
    {"scatter", scatter},
    {"reduce_scatter", reduce_scatter},
    {"all_to_all", all_to_all},
    {"recv", recv},
    {"send", send},
    {"object", object},
    {"split", split},
    {"close", close},
    {"tensors", tensors},
    {"configs", configs},
    {"recv_any", recv_any},
    {"poll_recv", poll_recv},
    {"poll_all_reduce", poll_all_reduce},
};

/// Writes what this rank was told, for the script to compare: first the cause, then the durations.
void tell(Collective const& world, Error const& e, std::chrono::steady_clock::duration took) {
  std::ofstream out(std::filesystem::path(std::getenv("CROSSRANK_TEST_FOLDER")) / std::to_string(world.rank()));
  out << e.info().message << "\n"
      << std::chrono::duration_cast<std::chrono::milliseconds>(took).count() << " ms\n"
      << e.report();
}

class MpiDeath : public testing::TestWithParam<Work> {};

TEST_P(MpiDeath, is_reported_to_all) {
  auto world = connect(job(std::string(GetParam().name)));
  int const survivors = world.world_size() - std::stoi(text_of_variable("CROSSRANK_TEST_DEATHS", "1"));
  GetParam().call(world, survivors);
  world.barrier();  // earlier messages of the doomed rank have arrived
  if (world.rank() >= survivors) ::raise(SIGKILL);
  auto const start = std::chrono::steady_clock::now();
  try {
    for (;;) GetParam().call(world, survivors);
  } catch (Error const& e) {
    auto const took = std::chrono::steady_clock::now() - start;
    EXPECT_TRUE(e.code() == ErrorCode::peer_lost || e.code() == ErrorCode::timeout) << e.what();
    EXPECT_THAT(e.failed_ranks(), testing::Each(testing::Ge(survivors))) << e.report();
    EXPECT_FALSE(e.failed_ranks().empty());
    EXPECT_FALSE(e.group_usable());
    EXPECT_THAT(e.report(), testing::HasSubstr("host "));
    EXPECT_LT(took, deadline + std::chrono::seconds(1) + slack_of_a_busy_host);
    EXPECT_THROW(world.barrier(), Error);
    tell(world, e, took);
  }
}

INSTANTIATE_TEST_SUITE_P(Work, MpiDeath, testing::ValuesIn(works),
                         [](auto const& one) { return std::string(one.param.name); });

/// The rank dies between the two barrier rounds of a range.
TEST(MpiDeathInRange, is_reported_to_all) {
  auto world = connect(job("death in a range"));
  int const doomed = world.world_size() - 1;
  auto const start = std::chrono::steady_clock::now();
  auto const gather = [&] {
    auto items = get_tensors_parallel(block(100'000), world);
    if (world.rank() == doomed) ::raise(SIGKILL);
    for (auto const& item : items) EXPECT_TRUE(item.defined());
    items.close();
  };
  try {
    gather();
    ADD_FAILURE() << "the range with a dead rank ended without an error";
  } catch (Error const& e) {
    EXPECT_TRUE(e.code() == ErrorCode::peer_lost || e.code() == ErrorCode::timeout) << e.what();
    EXPECT_FALSE(e.group_usable());
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(doomed)) << e.report();
    tell(world, e, std::chrono::steady_clock::now() - start);
  }
}

/// The rank dies while the receiver computes. The others remove their files before it asks for them.
TEST(MpiDeathInFileRange, is_reported_to_all) {
  auto world = connect(job("death in a range of files"));
  int const doomed = world.world_size() - 1;
  auto const files = std::filesystem::path(std::getenv("CROSSRANK_TEST_FOLDER")) / "files";
  auto const start = std::chrono::steady_clock::now();
  try {
    auto items = get_tensors_parallel(block(1'000), world, {.workspace_path = files});
    if (world.rank() == doomed) ::raise(SIGKILL);
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    static_cast<void>(std::move(items).take());
    ADD_FAILURE() << "the range with a dead rank ended without an error";
  } catch (Error const& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
    EXPECT_FALSE(e.group_usable());
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(doomed)) << e.report();
    tell(world, e, std::chrono::steady_clock::now() - start);
  }
}

/// The endpoints wait without a limit.
TEST(MpiDeathInQueue, is_reported_to_all) {
  auto world = connect(job("death in a queue"));
  int const doomed = world.world_size() - 1;
  auto const queue = MessageQueue::create(world);
  QueueWait const wait{.timeout = QueueWait::forever};
  auto const start = std::chrono::steady_clock::now();
  try {
    for (int i = 0; i < 1'000'000; ++i) {
      if (world.rank() == doomed && i == 20) ::raise(SIGKILL);
      if (world.rank() == 0) {
        queue.enqueue(i, wait);
      } else {
        EXPECT_EQ(queue.dequeue<int>(wait), i);
      }
    }
    ADD_FAILURE() << "the queue with a dead reader ended without an error";
  } catch (Error const& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer_lost) << e.what();
    EXPECT_THAT(e.failed_ranks(), testing::ElementsAre(doomed)) << e.report();
    EXPECT_THROW(world.barrier(), Error);
    tell(world, e, std::chrono::steady_clock::now() - start);
  }
}

/// The process ends while another rank is stopped. MPI_Finalize would wait for it without a limit.
TEST(MpiExit, does_not_wait_for_a_stopped_rank) {
  auto world =
      connect({.timeout = deadline, .connect_timeout = std::chrono::minutes(5), .job_id = "stopped at the end"});
  world.barrier();
  if (world.rank() == world.world_size() - 1) ::raise(SIGSTOP);
}

}  // namespace
}  // namespace crossrank::test
