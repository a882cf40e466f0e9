// What the emulated driver reports although the real one is silent, and the faults that tests can ask for.
#include <string>
#include <thread>
#include <vector>

#include "tests/device/driver.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"

namespace device_test {
namespace {

class Strictness : public Driver {
 protected:
  void SetUp() override {
    if (real()) GTEST_SKIP() << "only the emulated driver has these";
    Driver::SetUp();
  }
  void TearDown() override {
    if (!real()) Driver::TearDown();
  }
  /// Ends the context with its sticky error, so that the next test has a fresh one.
  void reset() {
    forget_reports();
    EXPECT_EQ(cu("cuDevicePrimaryCtxReset_v2", CUdevice{0}), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuDevicePrimaryCtxRetain", &context, CUdevice{0}), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuCtxSetCurrent", context), CUDA_SUCCESS);
  }
};

TEST_F(Strictness, reports_use_after_free) {
  auto const address = allocate(4096);
  free(address);
  EXPECT_EQ(cu("cuMemsetD8_v2", address, static_cast<unsigned char>(1), std::size_t{1}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(reports(), 1U);
  forget_reports();
}

TEST_F(Strictness, reports_a_free_that_another_stream_does_not_know) {
  auto const owner = stream();
  auto const user = stream();
  CUdeviceptr address = 0;
  ASSERT_EQ(cu("cuMemAllocAsync", &address, std::size_t{4096}, owner), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamSynchronize", owner), CUDA_SUCCESS);
  auto const late = event();
  auto const hold = stream();
  // The user waits for a stream that is held until the free has run.
  CUdeviceptr const flag = allocate(4);
  ASSERT_EQ(cu("cuMemsetD32_v2", flag, 0U, std::size_t{1}), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitValue32_v2", hold, flag, cuuint32_t{1}, 0U), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuEventRecord", late, hold), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitEvent", user, late, 0U), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 1U, std::size_t{16}, user), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemFreeAsync", address, owner), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWriteValue32_v2", owner, flag, cuuint32_t{1}, 0U), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuStreamSynchronize", user), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_GE(reports(), 1U);
  EXPECT_EQ(cu("cuCtxSynchronize"), CUDA_ERROR_ILLEGAL_ADDRESS);
  reset();
  EXPECT_EQ(cu("cuEventDestroy_v2", late), CUDA_SUCCESS);
}

TEST_F(Strictness, reports_a_replay_that_uses_freed_memory) {
  auto const address = allocate(4096);
  auto const s = stream();
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_EQ(cu("cuStreamBeginCapture_v2", s, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 1U, std::size_t{16}, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamEndCapture", s, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ULL), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuGraphDestroy", graph), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuGraphLaunch", executable, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  EXPECT_EQ(reports(), 0U);
  free(address);
  ASSERT_EQ(cu("cuGraphLaunch", executable, s), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuStreamSynchronize", s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_GE(reports(), 1U);
  reset();
  EXPECT_EQ(cu("cuGraphExecDestroy", executable), CUDA_SUCCESS);
}

TEST_F(Strictness, copies_late_enough_for_a_missing_wait_to_show) {
  auto const address = allocate(1024);
  auto const s = stream();
  Pinned back(256);
  back.data[0] = -1;
  int stale = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(cu("cuMemsetD32Async", address, static_cast<unsigned>(round), std::size_t{256}, s), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, back.bytes(), s), CUDA_SUCCESS);
    stale += cu("cuStreamQuery", s) == CUDA_ERROR_NOT_READY ? 1 : 0;
    ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  }
  EXPECT_GT(stale, 0);
  destroy(s);
  free(address);
}

TEST_F(Strictness, makes_the_nth_call_fail) {
  emulated<void(char const*, unsigned long long, int)>("emulated_fail_call")("cuMemAlloc_v2", 2,
                                                                             CUDA_ERROR_OUT_OF_MEMORY);
  auto const first = allocate(16);
  CUdeviceptr second = 0;
  EXPECT_EQ(cu("cuMemAlloc_v2", &second, std::size_t{16}), CUDA_ERROR_OUT_OF_MEMORY);
  free(first);
}

TEST_F(Strictness, runs_registered_kernels_and_keeps_sticky_errors) {
  static int seen = 0;
  std::size_t const sizes[] = {sizeof(CUdeviceptr), sizeof(int)};
  emulated<void(char const*, EmulatedKernel, std::size_t const*, std::size_t)>("emulated_register_kernel")(
      "add_one",
      [](EmulatedLaunch const* launch, void** arguments) {
        auto const address = *static_cast<CUdeviceptr*>(arguments[0]);
        auto* const values = static_cast<int*>(
            emulated<void*(CUdeviceptr, std::size_t, int)>("emulated_bytes")(address, sizeof(int), launch->device));
        seen = values[0] + *static_cast<int*>(arguments[1]);
      },
      sizes, 2);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 7.0")), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuModuleGetFunction", &function, module, "missing"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "add_one"), CUDA_SUCCESS);
  auto address = allocate(16);
  ASSERT_EQ(cu("cuMemsetD32_v2", address, 41U, std::size_t{4}), CUDA_SUCCESS);
  int one = 1;
  void* arguments[] = {&address, &one};
  auto const launch = [&] {
    return cu("cuLaunchKernel", function, 1U, 1U, 1U, 1U, 1U, 1U, 0U, CUstream{}, static_cast<void**>(arguments),
              static_cast<void**>(nullptr));
  };
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
  EXPECT_EQ(seen, 42);
  emulated<void(unsigned long long, int)>("emulated_fail_kernel")(1, CUDA_ERROR_LAUNCH_FAILED);
  ASSERT_EQ(launch(), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuCtxSynchronize"), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(cu("cuMemFree_v2", address), CUDA_ERROR_LAUNCH_FAILED);
  reset();
}

/// Makes a text with one kernel, which takes 8 bytes.
std::string ptx_of(char const* kernel, char const* target) {
  return std::string(".version 6.0\n.target ") + target + "\n.address_size 64\n.visible .entry " + kernel +
         "(\n\t.param .align 8 .b8 " + kernel + "_param_0[8]\n)\n{\n\tret;\n}\n";
}

void register_nothing(char const* name, std::vector<std::size_t> const& sizes) {
  emulated<void(char const*, EmulatedKernel, std::size_t const*, std::size_t)>("emulated_register_kernel")(
      name, [](EmulatedLaunch const*, void**) {}, sizes.data(), sizes.size());
}

TEST_F(Strictness, has_the_kernels_of_the_image_with_their_parameters) {
  register_nothing("in_the_image", {8});
  register_nothing("not_in_the_image", {8});
  auto const image = ptx_of("in_the_image", "sm_50");
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(image.c_str())), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuModuleGetFunction", &function, module, "not_in_the_image"), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(cu("cuModuleGetFunction", &function, module, "in_the_image"), CUDA_SUCCESS);
  register_nothing("in_the_image", {8, 4});
  EXPECT_EQ(cu("cuModuleGetFunction", &function, module, "in_the_image"), CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(reports(), 1U);
  forget_reports();
}

TEST_F(Strictness, loads_no_image_for_later_devices) {
  auto const image = ptx_of("later", "sm_999");
  CUmodule module = nullptr;
  EXPECT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(image.c_str())), CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(Strictness, launches_no_kernel_of_an_unloaded_module) {
  register_nothing("unloaded", {});
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 7.0")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "unloaded"), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleUnload", module), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuLaunchKernel", function, 1U, 1U, 1U, 1U, 1U, 1U, 0U, CUstream{}, static_cast<void**>(nullptr),
               static_cast<void**>(nullptr)),
            CUDA_ERROR_INVALID_HANDLE);
}

/// The kernels of the library, whose only argument has 32 bytes: two addresses, a count, and two dtypes.
TEST_F(Strictness, reports_misaligned_and_freed_memory_in_kernels_of_the_library) {
  struct Conversion {
    CUdeviceptr to;
    CUdeviceptr from;
    unsigned long long elements;
    unsigned char dtypes[8];
  };
  constexpr unsigned char f32 = 17;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 7.0")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "crossrank_convert"), CUDA_SUCCESS);
  auto const launch = [&](CUdeviceptr to, CUdeviceptr from) {
    Conversion conversion{.to = to, .from = from, .elements = 4, .dtypes = {f32, f32}};
    void* arguments[] = {&conversion};
    EXPECT_EQ(cu("cuLaunchKernel", function, 1U, 1U, 1U, 32U, 1U, 1U, 0U, CUstream{}, static_cast<void**>(arguments),
                 static_cast<void**>(nullptr)),
              CUDA_SUCCESS);
    return cu("cuCtxSynchronize");
  };
  auto const address = allocate(64);
  EXPECT_EQ(launch(address, address + 16), CUDA_SUCCESS);
  EXPECT_EQ(launch(address + 2, address + 16), CUDA_ERROR_MISALIGNED_ADDRESS);
  reset();
  auto const freed = allocate(64);
  free(freed);
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 7.0")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "crossrank_convert"), CUDA_SUCCESS);
  EXPECT_EQ(launch(freed, freed + 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  reset();
}

TEST_F(Strictness, makes_the_nth_kernel_hang) {
  auto const register_kernel =
      emulated<void(char const*, EmulatedKernel, std::size_t const*, std::size_t)>("emulated_register_kernel");
  register_kernel(
      "nothing", [](EmulatedLaunch const*, void**) {}, nullptr, 0);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cu("cuModuleLoadData", &module, static_cast<void const*>(".version 7.0")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuModuleGetFunction", &function, module, "nothing"), CUDA_SUCCESS);
  auto const s = stream();
  emulated<void(unsigned long long)>("emulated_hang_kernel")(2);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cu("cuLaunchKernel", function, 1U, 1U, 1U, 1U, 1U, 1U, 0U, s, static_cast<void**>(nullptr),
                 static_cast<void**>(nullptr)),
              CUDA_SUCCESS);
  }
  EXPECT_EQ(cu("cuStreamQuery", s), CUDA_ERROR_NOT_READY);
  // The kernel may not have begun to hang yet, so it is released until the stream ends.
  while (cu("cuStreamQuery", s) == CUDA_ERROR_NOT_READY) emulated<void()>("emulated_release_hangs")();
  EXPECT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  destroy(s);
}

TEST_F(Strictness, counts_calls_and_host_waits) {
  auto const address = allocate(64);
  emulated<void()>("emulated_reset_counts")();
  std::vector<int> host(16);
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), address, std::size_t{64}), CUDA_SUCCESS);
  EXPECT_EQ(count("cuMemcpyDtoH_v2"), 1U);
  EXPECT_EQ(count("host_wait"), 1U);
  EXPECT_EQ(count("copy"), 1U);
  free(address);
}

/// A host that waits by asking again and again counts as one wait; one that polls now and then does not wait.
TEST_F(Strictness, counts_polled_waits_and_copied_bytes) {
  auto const amount = emulated<unsigned long long(char const*)>("emulated_amount");
  auto const held = stream();
  auto const flag = allocate(4);
  auto const copy = allocate(4096);
  auto const passed = event();
  auto const hold = [&](cuuint32_t value) {
    EXPECT_EQ(cu("cuStreamWaitValue32_v2", held, flag, value, 0U), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuEventRecord", passed, held), CUDA_SUCCESS);
  };
  auto const other = stream();
  auto const release = [&](cuuint32_t value) {
    EXPECT_EQ(cu("cuStreamWriteValue32_v2", other, flag, value, 0U), CUDA_SUCCESS);
  };
  ASSERT_EQ(cu("cuMemsetD32_v2", flag, 0U, std::size_t{1}), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
  emulated<void()>("emulated_reset_counts")();

  hold(1);
  for (int poll = 0; poll < 20; ++poll) {
    EXPECT_EQ(cu("cuEventQuery", passed), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cu("cuMemcpyDtoDAsync_v2", copy, copy + 1024, std::size_t{100}, other), CUDA_SUCCESS);
  }
  release(1);
  EXPECT_EQ(cu("cuStreamSynchronize", held), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuEventQuery", passed), CUDA_SUCCESS);
  EXPECT_EQ(count("polled_wait"), 0U);
  EXPECT_EQ(count("copy"), 20U);
  EXPECT_EQ(amount("copied_bytes"), 2000U);

  hold(2);
  auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  for (int poll = 0; poll < 20; ++poll) {
    EXPECT_EQ(cu("cuThreadExchangeStreamCaptureMode", &mode), CUDA_SUCCESS);  // in case another thread captures
    EXPECT_EQ(cu("cuEventQuery", passed), CUDA_ERROR_NOT_READY);
  }
  std::thread([&] {
    EXPECT_EQ(cu("cuCtxSetCurrent", context), CUDA_SUCCESS);
    release(2);
  }).join();
  while (cu("cuEventQuery", passed) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  EXPECT_EQ(count("polled_wait"), 1U);

  EXPECT_EQ(cu("cuEventDestroy_v2", passed), CUDA_SUCCESS);
  destroy(held);
  destroy(other);
  free(flag);
  free(copy);
}

}  // namespace
}  // namespace device_test
