#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/spi/device_transport.hpp>
#include <crossrank/spi/storage.hpp>

#include "collectives/core/named_calls.hpp"
#include "lib/core/as_size.hpp"
#include "tests/collectives/device/nccl_ranks.hpp"
#include "tests/collectives/device/thread_transport.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/thread_ranks.hpp"

/// A device transport that is not NCCL: how ranks agree on it, and what the library does around it.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int thread_count = 3;

/// Runs the body on ranks that are threads, with the transport. `timeout` is the limit of every wait.
int run_on_threads(ThreadBody const& body, std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  add_thread_transport();
  run_thread_ranks(thread_count, body, {.timeout = timeout});
  return end_gpu_rank();
}

void expect_sum(Collective const& world, std::string_view backend) {
  auto tensor = filled_on_own_gpu(world, 1'000);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), backend);
  EXPECT_EQ(values(tensor), std::vector<float>(1'000, 6));
}

// ---------------------------------------------------------------- several hosts

/// Each call blocks until its stream continues, which waits for the comparison with the other host.
CROSSRANK_RANK_SCENARIO(transport_with_a_full_queue_of_launches) {
  add_thread_transport();
  block_launches();
  run_message_ranks(thread_count,
                    [](Collective const& world, MemoryHub&) {
                      auto tensor = filled_on_own_gpu(world, 1'000);
                      for (int i = 0; i < 5; ++i) {
                        world.all_reduce(tensor, ReduceOp::max);
                        world.iall_reduce(tensor, ReduceOp::max).wait();
                      }
                      EXPECT_EQ(world.device_backend(), thread_transport_name);
                      EXPECT_EQ(values(tensor), std::vector<float>(1'000, 3));
                    },
                    {.timeout = std::chrono::seconds(20)});
  return end_gpu_rank();
}

TEST(DeviceTransport, compares_calls_while_a_launch_blocks) {
  expect_job_ok(1, "transport_with_a_full_queue_of_launches", one_process());
}

// ---------------------------------------------------------------- the choice

CROSSRANK_RANK_SCENARIO(transport_choice) {
  auto const& expected = self.arguments.at(0);
  return run_on_threads([&](Collective const& world) {
    expect_sum(world, expected);
    EXPECT_EQ(nccl::process_group(world).has_value(), expected == "nccl");
    auto const pair = world.split({{0, 2}, {1}});
    auto tensor = filled(pair, 10, gpu_of_thread(world));
    pair.all_reduce(tensor);
    EXPECT_EQ(pair.device_backend(), expected);
    EXPECT_EQ(values(tensor), std::vector<float>(10, pair.world_size() == 1 ? 1 : 3));
  });
}

void expect_transport(std::string_view backend, std::map<std::string, std::string> const& environment) {
  auto options = one_process(environment);
  options.arguments = {std::string(backend)};
  expect_job_ok(1, "transport_choice", std::move(options));
}

TEST(DeviceTransport, comes_before_nccl_when_it_was_added) { expect_transport("threads", {}); }

TEST(DeviceTransport, is_chosen_by_the_setting) {
  expect_transport("nccl", {{"CROSSRANK_DEVICE", "nccl"}});
  expect_transport("staged", {{"CROSSRANK_DEVICE", "staged"}});
  expect_transport("threads", {{"CROSSRANK_DEVICE", "threads"}, {"CROSSRANK_NCCL_LIBRARY", "/nowhere"}});
}

CROSSRANK_RANK_SCENARIO(transport_of_unknown_name) {
  return run_on_threads([](Collective const& world) {
    auto tensor = filled_on_own_gpu(world, 4);
    auto const info = error_of<UnavailableError>([&] { world.all_reduce(tensor); });
    EXPECT_THAT(info.message, HasSubstr("rank 0 cannot use thread: the process has no transport of this name"));
    EXPECT_TRUE(info.group_usable);
    world.barrier();
  });
}

TEST(DeviceTransport, of_an_unknown_name_is_an_error_on_all_ranks) {
  expect_job_ok(1, "transport_of_unknown_name", one_process({{"CROSSRANK_DEVICE", "thread"}}));
}

CROSSRANK_RANK_SCENARIO(transport_with_objection) {
  return run_on_threads([&](Collective const& world) {
    auto tensor = filled(world, 4, Device::cuda(world.rank() / 2));
    if (self.arguments.at(0) == "forced") {
      auto const info = error_of<UnavailableError>([&] { world.all_reduce(tensor); });
      EXPECT_THAT(info.message, HasSubstr("Threads cannot carry"));
      EXPECT_THAT(info.message, HasSubstr("rank 0 and rank 1 share a GPU"));
      return;
    }
    world.all_reduce(tensor);
    EXPECT_EQ(world.device_backend(), "staged");
    EXPECT_EQ(values(tensor), std::vector<float>(4, 6));
  });
}

TEST(DeviceTransport, objects_to_ranks_that_it_cannot_serve) {
  auto options = one_process();
  options.arguments = {"automatic"};
  expect_job_ok(1, "transport_with_objection", options);
  options.arguments = {"forced"};
  options.environment["CROSSRANK_DEVICE"] = "threads";
  expect_job_ok(1, "transport_with_objection", options);
}

/// Ranks that are processes: only rank 0 has added the transport, and the others would use NCCL.
CROSSRANK_RANK_SCENARIO(transport_of_one_rank) {
  if (self.rank == 0) add_thread_transport();
  auto const world = connect_gpu_rank();
  auto tensor = filled(world, 4);
  world.all_reduce(tensor);
  EXPECT_EQ(world.device_backend(), "staged");
  EXPECT_EQ(values(tensor), std::vector<float>(4, 3));
  return end_gpu_rank();
}

TEST(DeviceTransport, is_staged_where_the_ranks_have_different_ones) { expect_job_ok(2, "transport_of_one_rank"); }

/// A factory with a name, which is all that `add_device_transport` looks at.
class NamedFactory final : public spi::DeviceTransportFactory {
 public:
  explicit NamedFactory(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] std::string_view title() const noexcept override { return "Named"; }
  [[nodiscard]] bool serves(Device::Kind) const noexcept override { return false; }
  [[nodiscard]] spi::DeviceTransportOffer offer(Device) override { return {}; }
  [[nodiscard]] std::optional<std::string> objection(std::span<spi::DeviceTransportOffer const>) const override {
    return {};
  }
  [[nodiscard]] spi::DeviceTransportId draw_id() override { return {}; }
  [[nodiscard]] std::unique_ptr<spi::DeviceTransport> join(spi::DeviceTransportId const&, spi::DevicePlace const&,
                                                           std::chrono::milliseconds,
                                                           spi::DevicePollHook const&) override {
    return nullptr;
  }

 private:
  std::string name_;
};

/// A factory that has been added stays in its process.
CROSSRANK_RANK_SCENARIO(transport_names) {
  auto const add = [](std::string const& name) {
    return [name] { spi::add_device_transport(std::make_shared<NamedFactory>(name)); };
  };
  EXPECT_THAT(error_of<UsageError>(add("nccl")).got, HasSubstr("nccl"));
  EXPECT_THAT(error_of<UsageError>(add("staged")).got, HasSubstr("staged"));
  EXPECT_THROW(add("")(), UsageError);
  EXPECT_THROW(add(std::string(24, 'x'))(), UsageError);
  EXPECT_THROW(spi::add_device_transport(nullptr), UsageError);
  add(std::string(23, 'y'))();
  EXPECT_THROW(add(std::string(23, 'y'))(), UsageError);
  return 0;
}

TEST(DeviceTransport, has_a_name_of_its_own) { expect_job_ok(1, "transport_names", one_process()); }

/// A factory whose last rank cannot make its part: it throws what is not an `Error`, or returns null.
class BrokenFactory final : public spi::DeviceTransportFactory {
 public:
  explicit BrokenFactory(std::string defect) : defect_(std::move(defect)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "broken"; }
  [[nodiscard]] std::string_view title() const noexcept override { return "Broken"; }
  [[nodiscard]] bool serves(Device::Kind) const noexcept override { return true; }
  [[nodiscard]] spi::DeviceTransportOffer offer(Device) override { return {}; }
  [[nodiscard]] std::optional<std::string> objection(std::span<spi::DeviceTransportOffer const>) const override {
    return {};
  }
  [[nodiscard]] spi::DeviceTransportId draw_id() override {
    if (defect_ == "draw_id") throw std::runtime_error("no entropy");
    return {};
  }
  [[nodiscard]] std::unique_ptr<spi::DeviceTransport> join(spi::DeviceTransportId const&, spi::DevicePlace const& place,
                                                           std::chrono::milliseconds,
                                                           spi::DevicePollHook const& poll_hook) override {
    if (place.rank == place.ranks - 1) {
      if (defect_ == "null") return nullptr;
      throw std::runtime_error("no wire");
    }
    while (true) {  // until the watchdog knows of the last rank
      poll_hook();
      std::this_thread::yield();
    }
  }

 private:
  std::string defect_;
};

CROSSRANK_RANK_SCENARIO(transport_that_cannot_be_made) {
  spi::add_device_transport(std::make_shared<BrokenFactory>(self.arguments.at(0)));
  run_thread_ranks(thread_count, [&](Collective const& world) { expect_sum(world, "staged"); });
  return end_gpu_rank();
}

TEST(DeviceTransport, is_staged_where_a_rank_cannot_make_its_part) {
  for (auto const* defect : {"draw_id", "join", "null"}) {
    auto options = one_process();
    options.arguments = {defect};
    expect_job_ok(1, "transport_that_cannot_be_made", std::move(options));
  }
}

// ---------------------------------------------------------------- calls

CROSSRANK_RANK_SCENARIO(transport_calls) {
  return run_on_threads([](Collective const& world) {
    auto const device = gpu_of_thread(world);
    expect_sum(world, "threads");
    expect_exchanges(world, device);
    auto flag = Tensor::of(std::vector<std::uint8_t>{static_cast<std::uint8_t>(1 << world.rank())}, {1}).to(device);
    world.all_reduce(flag, ReduceOp::bor);
    EXPECT_EQ(flag.to(Device::cpu()).as<std::uint8_t>()[0], 7) << "the transport has more ops than NCCL";
    auto unequal = filled(world, 4 + world.rank() / 2, device);
    EXPECT_THROW(
        {
          world.all_reduce(unequal);
          current_stream(device).synchronize();
        },
        MismatchError)
        << "the library compares, not the transport";
  });
}

TEST(DeviceTransport, carries_collectives) { expect_job_ok(1, "transport_calls", one_process()); }

CROSSRANK_RANK_SCENARIO(transport_enqueue) {
  return run_on_threads([](Collective const& world) {
    auto tensor = filled_on_own_gpu(world, 1'000);
    world.all_reduce(tensor);
    current_stream(tensor.device()).synchronize();
    world.barrier();
    if (world.rank() == 0) reset_emulated_counts();
    world.barrier();
    for (int i = 0; i < 3; ++i) world.all_reduce(tensor);
    EXPECT_EQ(emulated_count("host_wait"), 0U);
    world.barrier();
    EXPECT_EQ(values(tensor), std::vector<float>(1'000, 6 * 27));
  });
}

TEST(DeviceTransport, lets_the_host_wait_for_no_device) { expect_job_ok(1, "transport_enqueue", one_process()); }

CROSSRANK_RANK_SCENARIO(transport_graph) {
  return run_on_threads([](Collective const& world) {
    auto const device = gpu_of_thread(world);
    auto tensor = filled(world, 1'000, device);
    world.all_reduce(tensor);
    auto const stream = Stream::create(device);
    stream.wait(current_stream(device).record());
    auto const graph = cuda::Graph::capture(stream, [&] { world.all_reduce(tensor); });
    graph.replay(stream);
    graph.replay(stream);
    StreamGuard const guard(stream);
    EXPECT_EQ(values(tensor), std::vector<float>(1'000, 6 * 9));
  });
}

TEST(DeviceTransport, is_a_part_of_graphs) { expect_job_ok(1, "transport_graph", one_process()); }

CROSSRANK_RANK_SCENARIO(transport_buffers) {
  return run_on_threads([](Collective const& world) {
    auto const device = gpu_of_thread(world);
    auto const storage = detail::NamedCalls(world, "make buffers").make_buffer(device, 1'600);
    ASSERT_TRUE(storage);
    EXPECT_EQ(storage->size_bytes(), 1'600U);
    auto buffer = spi::tensor_from_storage(storage, 0, {400}, Dtype::f32);
    buffer.copy_from(filled(world, 400, device));
    world.all_reduce(buffer);
    EXPECT_EQ(values(buffer), std::vector<float>(400, 6));
    EXPECT_THROW(
        static_cast<void>(detail::NamedCalls(world, "make buffers").make_buffer(device, 4 + as_size(world.rank()))),
        MismatchError);
  });
}

TEST(DeviceTransport, gives_memory_for_communication_buffers) { expect_job_ok(1, "transport_buffers", one_process()); }

// ---------------------------------------------------------------- failures

/// Returns a handle of the same group whose ranks do not wait for each other before they enqueue.
Collective unchecked(Collective const& world) {
  return make_collective(world.transport(), world.timeout_policy(), CheckLevel::off);
}

/// Makes a first call, which opens the transport, and returns its tensor.
Tensor reduced_once(Collective const& world) {
  auto tensor = filled_on_own_gpu(world, 1'000);
  world.all_reduce(tensor);
  current_stream(tensor.device()).synchronize();
  world.barrier();
  return tensor;
}

CROSSRANK_RANK_SCENARIO(transport_missing_call) {
  return run_on_threads(
      [](Collective const& checked) {
        auto const world = unchecked(checked);
        auto tensor = reduced_once(world);
        if (world.rank() == 1) {
          EXPECT_THROW(
              {
                for (;;) world.recv(tensor, 0);
              },
              TimeoutError);
          std::this_thread::sleep_for(std::chrono::seconds(2));  // it does not leave before the others give up
          return;
        }
        auto const info = error_of<TimeoutError>([&] {
          world.all_reduce(tensor);
          current_stream(tensor.device()).synchronize();
        });
        EXPECT_THAT(info.failed_ranks, ElementsAre(1));
        EXPECT_THAT(info.message, HasSubstr("all_reduce on the GPUs (call 2 of Threads)"));
      },
      std::chrono::milliseconds(1'500));
}

TEST(DeviceTransport, ends_a_call_that_a_rank_does_not_make) {
  expect_job_ok(1, "transport_missing_call", one_process());
}

CROSSRANK_RANK_SCENARIO(transport_failure) {
  return run_on_threads([&](Collective const& checked) {
    auto const world = unchecked(checked);
    auto tensor = reduced_once(world);
    if (world.rank() == 1) {
      auto const aborted = error_of<PeerLostError>([&] {
        if (self.arguments.at(0) == "failure") fail_thread_transports("the wire has burnt");
        if (self.arguments.at(0) == "abort") world.abort("the wire has burnt");
        for (;;) world.barrier();
      });
      EXPECT_THAT(aborted.message, HasSubstr("the wire has burnt"));
      return;
    }
    auto const info = error_of<PeerLostError>([&] {
      world.all_reduce(tensor);
      current_stream(tensor.device()).synchronize();
    });
    EXPECT_THAT(info.message, HasSubstr("the wire has burnt"));
  });
}

class DeviceTransportFailure : public testing::TestWithParam<char const*> {};

TEST_P(DeviceTransportFailure, ends_the_streams_of_all_ranks) {
  auto options = one_process();
  options.arguments = {GetParam()};
  expect_job_ok(1, "transport_failure", std::move(options));
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceTransportFailure, testing::Values("failure", "abort"));

}  // namespace
}  // namespace crossrank::test
