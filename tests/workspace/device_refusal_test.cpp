// Tensors on a device that this library cannot move, because there is no driver: every operation refuses them before it
// touches or sends a byte, and the group stays usable.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/spi/storage.hpp>

#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "workspace/gather/packed_contribution.hpp"

namespace crossrank {
namespace {

using test::run_thread_ranks;
using testing::HasSubstr;

constexpr std::size_t page = 4096;
constexpr auto const* no_driver = "the library cannot be opened";

/// Each case is a process of its own, because a process looks for the driver once.
class DeviceTensors : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1); }
};

/// Memory of a device, as the host sees it: every access crashes.
class DeviceMemory final : public spi::Storage {
 public:
  DeviceMemory() : at_(::mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~DeviceMemory() override { ::munmap(at_, page); }
  DeviceMemory(DeviceMemory const&) = delete;
  DeviceMemory& operator=(DeviceMemory const&) = delete;
  [[nodiscard]] std::byte* data() noexcept override { return static_cast<std::byte*>(at_); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return page; }
  [[nodiscard]] Device device() const noexcept override { return {Device::Kind::cuda, 1}; }

 private:
  void* at_;
};

Tensor on_device(Shape const& shape = {8}) {
  return spi::tensor_from_storage(std::make_shared<DeviceMemory>(), 0, shape, Dtype::f32);
}

Tensor on_host(std::int64_t elements = 8) { return Tensor::zeros({elements}, Dtype::f32); }

template <class E = UsageError>
void expect_refused(std::function<void()> const& call, std::string const& name, char const* says = "cuda:1") {
  try {
    call();
    ADD_FAILURE() << name << " took the tensor";
  } catch (E const& error) {
    EXPECT_THAT(error.what(), HasSubstr(says)) << name;
    EXPECT_TRUE(error.group_usable()) << name;
  }
}

/// One operation per case. Each rank has one row.
struct OperationCase {
  char const* name;
  std::function<void(Collective const&, Tensor&)> call;
};

/// Calls that take all their tensors on one GPU.
std::vector<OperationCase> operations_on_one_device() {
  return {
      {"broadcast", [](auto const& world, Tensor& t) { world.broadcast(t); }},
      {"all_reduce", [](auto const& world, Tensor& t) { world.all_reduce(t); }},
      {"reduce", [](auto const& world, Tensor& t) { world.reduce(t); }},
      {"gather",
       [](auto const& world, Tensor& t) {
         auto out = on_device({16});
         world.gather(out, t);
       }},
      {"all_to_all",
       [](auto const& world, Tensor& t) {
         auto out = on_device();
         world.all_to_all(out, t);
       }},
      {"send", [](auto const& world, Tensor& t) { world.send(t, 1 - world.rank()); }},
      {"recv", [](auto const& world, Tensor& t) { world.recv(t, 1 - world.rank()); }},
      {"iall_reduce", [](auto const& world, Tensor& t) { world.iall_reduce(t).wait(); }},
      {"fused reduce_scatter",
       [](auto const& world, Tensor& t) {
         std::vector<Tensor> outs{on_device({4})};
         std::vector<Tensor> const ins{t};
         world.ireduce_scatter(std::span<Tensor>(outs), std::span<Tensor const>(ins)).wait();
       }},
      {"fused all_gather",
       [](auto const& world, Tensor& t) {
         std::vector<Tensor> outs{on_device({16})};
         std::vector<Tensor> const ins{t};
         world.iall_gather(std::span<Tensor>(outs), std::span<Tensor const>(ins)).wait();
       }},
  };
}

/// Calls with a tensor on a GPU and one on the CPU, and calls that take no tensor on a GPU.
std::vector<OperationCase> impossible_operations() {
  return {
      {"reduce_scatter",
       [](auto const& world, Tensor& t) {
         auto out = on_host(4);
         world.reduce_scatter(out, t);
       }},
      {"reduce_scatter out",
       [](auto const& world, Tensor& t) {
         auto in = on_host(16);
         world.reduce_scatter(t, in);
       }},
      {"all_gather",
       [](auto const& world, Tensor& t) {
         auto out = on_host(16);
         world.all_gather(out, t);
       }},
      {"all_gather out", [](auto const& world, Tensor& t) { world.all_gather(t, on_host(4)); }},
      {"gather",
       [](auto const& world, Tensor& t) {
         auto out = on_host(16);
         world.gather(out, t, {world.rank()});
       }},
      {"scatter",
       [](auto const& world, Tensor& t) {
         auto in = on_host(16);
         world.scatter(t, in, {world.rank()});
       }},
      {"all_to_all",
       [](auto const& world, Tensor& t) {
         auto out = on_host();
         world.all_to_all(out, t);
       }},
      {"all_to_all out", [](auto const& world, Tensor& t) { world.all_to_all(t, on_host()); }},
      {"fused all_reduce",
       [](auto const& world, Tensor& t) {
         std::vector<Tensor> tensors{on_host(), t};
         world.iall_reduce(std::span<Tensor>(tensors)).wait();
       }},
  };
}

TEST_F(DeviceTensors, are_refused_by_every_operation_before_anything_is_sent) {
  run_thread_ranks(2, [](Collective const& world) {
    auto tensor = on_device();
    for (auto const& [name, call] : impossible_operations())
      expect_refused([&, &call = call] { call(world, tensor); }, name);
    auto ours = Tensor::scalar(1);
    world.all_reduce(ours);
    EXPECT_EQ(ours.item<int>(), 2);
  });
}

/// A rank that cannot do its part of a call ends the group: the others would wait for it. The faster rank's error may
/// reach the other one first.
TEST_F(DeviceTensors, end_the_group_of_ranks_that_cannot_reach_their_gpu) {
  for (auto const& [name, call] : operations_on_one_device()) {
    std::atomic<int> own_errors{0};
    run_thread_ranks(2, [&, &name = name, &call = call](Collective const& world) {
      auto tensor = on_device();
      try {
        call(world, tensor);
        ADD_FAILURE() << name << " took the tensor";
      } catch (UnavailableError const& error) {
        EXPECT_THAT(error.what(), HasSubstr(no_driver)) << name;
        EXPECT_FALSE(error.group_usable()) << name;
        ++own_errors;
      } catch (PeerLostError const& error) {
        EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(1 - world.rank())) << name;
      }
    });
    EXPECT_GE(own_errors, 1) << name;
  }
}

TEST_F(DeviceTensors, are_refused_by_gathers_on_the_contributing_rank) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(2, [&](Collective const& world) {
    for (bool const files : {false, true}) {
      GatherOptions options;
      if (files) options.workspace_path = directory.path();
      auto const gather = [&] { get_tensors_parallel({{"layer.w", on_device()}}, world, options).close(); };
      if (world.rank() == 1) {
        expect_refused<UnavailableError>(gather, files ? "files" : "memory", no_driver);
      } else {
        try {
          gather();
          ADD_FAILURE() << "rank 1 did not contribute";
        } catch (RemoteError const& error) {
          EXPECT_THAT(error.what(), HasSubstr(no_driver));
        }
      }
      EXPECT_EQ(get_tensors_parallel(on_host(), world, options).take().size(), world.rank() == 0 ? 2U : 0U);
    }
    world.barrier();
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  });
}

TEST_F(DeviceTensors, are_refused_by_workspaces_and_keep_the_previous_state) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(1, [&](Collective const& world) {
    StateDict const state{{"layer.w", on_device()}};
    SharedMemoryWorkspace memory(world);
    NFSWorkspace files(directory.path(), {.rank = 0});
    NFSWorkspace torch(directory.path() / "torch", {.rank = 0, .format = StateFormat::torch});
    memory.write_configs_and_weights(1, {});
    files.write_configs_and_weights(1, {});
    expect_refused<UnavailableError>([&] { memory.write_configs_and_weights(2, state); }, "SharedMemoryWorkspace",
                                     no_driver);
    expect_refused<UnavailableError>([&] { files.write_configs_and_weights(2, state); }, "NFSWorkspace", no_driver);
    expect_refused<UnavailableError>([&] { torch.write_configs_and_weights(2, state); }, "NFSWorkspace, torch",
                                     no_driver);
    EXPECT_EQ(memory.read_configs_and_weights_from_rank(0)->config, 1);
    EXPECT_EQ(files.read_configs_and_weights_from_rank(0)->config, 1);
    EXPECT_FALSE(torch.read_configs_and_weights_from_rank(0).has_value());
  });
}

/// Packing, for contributions to another node.
TEST_F(DeviceTensors, are_refused_when_a_contribution_is_packed) {
  auto const tensor = on_device();
  workspace::NamedTensor const named{"layer.w", &tensor};
  expect_refused<UnavailableError>(
      [&] {
        static_cast<void>(workspace::pack({.tensors = {&named, 1}}));
      },
      "pack", no_driver);
}

}  // namespace
}  // namespace crossrank
