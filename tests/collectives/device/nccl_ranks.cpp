#include "tests/collectives/device/nccl_ranks.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/error.hpp>

namespace crossrank::test {
namespace {

template <class Function>
Function* emulator(char const* name) {
  auto* const library = ::dlopen(CROSSRANK_TEST_CUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

RankOptions gpu_ranks(EmulatedNccl version, int gpus) {
  RankOptions options;
  options.environment = {{"CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA},
                         {"EMULATED_GPU_COUNT", std::to_string(gpus)},
                         {"EMULATED_GPU_MEMORY", "268435456"}};
  if (version == EmulatedNccl::newest) options.environment["CROSSRANK_NCCL_LIBRARY"] = CROSSRANK_TEST_NCCL;
  if (version == EmulatedNccl::v2_22) options.environment["CROSSRANK_NCCL_LIBRARY"] = CROSSRANK_TEST_NCCL_2_22;
  if (version == EmulatedNccl::v2_18) options.environment["CROSSRANK_NCCL_LIBRARY"] = CROSSRANK_TEST_NCCL_2_18;
  if (version == EmulatedNccl::none) options.environment["CROSSRANK_NCCL_LIBRARY"] = "/nowhere/libnccl.so.2";
  return options;
}

RankOptions one_process(std::map<std::string, std::string> const& environment) {
  auto options = gpu_ranks();
  options.launcher_variables = false;
  for (auto const& [name, value] : environment) options.environment[name] = value;
  return options;
}

void expect_job_ok(int ranks, std::string_view scenario, RankOptions options) {
  auto const job = run_ranks(ranks, scenario, std::move(options));
  EXPECT_TRUE(job.ok()) << job.text();
}

Collective connect_gpu_rank(ProgressMode progress, CheckLevel check) {
  return connect({.backend = "shm", .timeout = std::chrono::seconds(60), .check = check, .progress = progress});
}

Tensor filled(Collective const& world, std::int64_t count) { return filled(world, count, default_device()); }

unsigned long long emulated_count(char const* name) {
  return emulator<unsigned long long(char const*)>("emulated_count")(name);
}

void expect_refused(int rank, char const* function, std::function<void()> const& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (BackendError const& e) {
    EXPECT_EQ(rank, 1);
    EXPECT_THAT(e.info().message, testing::HasSubstr(function));
  } catch (PeerLostError const& e) {
    EXPECT_EQ(rank, 0);
    EXPECT_THAT(e.info().failed_ranks, testing::ElementsAre(1));
    EXPECT_THAT(e.what(), testing::HasSubstr(function));
  }
}

void await_abort() {
  while (emulated_count("ncclCommAbort") == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

int end_gpu_rank() {
  EXPECT_EQ(emulator<unsigned long long()>("emulated_report_count")(), 0U);
  return 0;
}

void block_stream(Stream const& stream) {
  using HostFunction = void (*)(void*);
  auto* const retain = emulator<int(void**, int)>("cuDevicePrimaryCtxRetain");
  auto* const push = emulator<int(void*)>("cuCtxPushCurrent_v2");
  auto* const launch = emulator<int(void*, HostFunction, void*)>("cuLaunchHostFunc");
  auto* const pop = emulator<int(void**)>("cuCtxPopCurrent_v2");
  void* context = nullptr;
  EXPECT_EQ(retain(&context, stream.device().index), 0);
  EXPECT_EQ(push(context), 0);
  auto const wait_for_ever = [](void*) {
    for (;;) ::pause();
  };
  EXPECT_EQ(launch(stream.native(), wait_for_ever, nullptr), 0);
  EXPECT_EQ(pop(&context), 0);
}

void fail_communicators(int nccl_result) {
  auto* const fail = emulator<void(char const*, unsigned long long, int)>("emulated_fail_call");
  constexpr unsigned long long queries = 1'000;
  for (unsigned long long nth = 1; nth <= queries; ++nth) fail("nccl_async_error", nth, nccl_result);
}

void reset_emulated_counts() { emulator<void()>("emulated_reset_counts")(); }

}  // namespace crossrank::test
