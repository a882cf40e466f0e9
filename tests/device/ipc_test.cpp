// Memory and events that two processes share. Source: "CUDA Driver API", Memory Management and Event Management, the
// functions cuIpc*. The second process is this program again: a process may not use CUDA in a child of fork.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "tests/device/driver.hpp"

namespace device_test {
namespace {

template <class Handle>
void to_environment(char const* name, Handle const& handle) {
  std::string digits;
  for (char const byte : handle.reserved) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
    digits += text;
  }
  ::setenv(name, digits.c_str(), 1);
}

template <class Handle>
Handle from_environment(char const* name) {
  Handle handle{};
  std::string const digits = std::getenv(name);
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

class Ipc : public Driver {
 protected:
  CUresult open(CUdeviceptr* address, CUipcMemHandle handle) {
    return cu("cuIpcOpenMemHandle_v2", address, handle, unsigned{CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS});
  }
};

class IpcImporter : public Ipc {
 protected:
  void SetUp() override {
    if (std::getenv("DEVICE_TEST_MEMORY") == nullptr) GTEST_SKIP() << "started by other tests";
    Ipc::SetUp();
  }
  void TearDown() override {
    if (context != nullptr) Ipc::TearDown();
  }
};

TEST_F(Ipc, shares_memory_and_events_with_another_process) {
  auto const address = allocate(4096);
  auto const s = stream();
  CUevent ready = nullptr;
  CUipcMemHandle memory{};
  CUipcEventHandle event{};
  ASSERT_EQ(cu("cuEventCreate", &ready, unsigned{CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING}), CUDA_SUCCESS);
  // The handle of an interior pointer names the whole allocation.
  ASSERT_EQ(cu("cuIpcGetMemHandle", &memory, address + 512), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuIpcGetEventHandle", &event, ready), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address, 17U, std::size_t{1024}, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuEventRecord", ready, s), CUDA_SUCCESS);
  to_environment("DEVICE_TEST_MEMORY", memory);
  to_environment("DEVICE_TEST_EVENT", event);
  EXPECT_EQ(run_other("IpcImporter.reads_what_the_exporter_has_written"), 0);
  ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  int value = 0;
  ASSERT_EQ(cu("cuMemcpyDtoH_v2", static_cast<void*>(&value), address + 4, sizeof value), CUDA_SUCCESS);
  EXPECT_EQ(value, 23);
  EXPECT_EQ(cu("cuEventDestroy_v2", ready), CUDA_SUCCESS);
  ::unsetenv("DEVICE_TEST_MEMORY");
  destroy(s);
  free(address);
}

TEST_F(IpcImporter, reads_what_the_exporter_has_written) {
  CUdeviceptr address = 0;
  CUdeviceptr again = 0;
  CUevent ready = nullptr;
  auto const s = stream();
  Pinned back(4);
  auto const memory = from_environment<CUipcMemHandle>("DEVICE_TEST_MEMORY");
  ASSERT_EQ(open(&address, memory), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuIpcOpenEventHandle", &ready, from_environment<CUipcEventHandle>("DEVICE_TEST_EVENT")), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamWaitEvent", s, ready, 0U), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(back.data), address, back.bytes(), s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuMemsetD32Async", address + 4, 23U, std::size_t{1}, s), CUDA_SUCCESS);
  ASSERT_EQ(cu("cuStreamSynchronize", s), CUDA_SUCCESS);
  EXPECT_EQ(back.data[0], 17);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_EQ(cu("cuMemGetAddressRange_v2", &base, &size, address), CUDA_SUCCESS);
  EXPECT_EQ(base, address);
  EXPECT_GE(size, 4096U);
  int version = 0;
  ASSERT_EQ(cu("cuDriverGetVersion", &version), CUDA_SUCCESS);
  if (version >= 12000) {  // the same address, counted
    EXPECT_EQ(open(&again, memory), CUDA_SUCCESS);
    EXPECT_EQ(again, address);
    EXPECT_EQ(cu("cuIpcCloseMemHandle", address), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu("cuIpcCloseMemHandle", address), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuEventDestroy_v2", ready), CUDA_SUCCESS);
  destroy(s);
}

TEST_F(Ipc, refuses_a_handle_of_its_own_process) {
  auto const address = allocate(4096);
  CUipcMemHandle memory{};
  CUdeviceptr other = 0;
  ASSERT_EQ(cu("cuIpcGetMemHandle", &memory, address), CUDA_SUCCESS);
  EXPECT_EQ(open(&other, memory), CUDA_ERROR_INVALID_CONTEXT);
  free(address);
}

TEST_F(Ipc, refuses_a_handle_whose_exporter_is_gone) {
  if (real()) GTEST_SKIP() << "the real driver does not say what happens";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ::setenv("DEVICE_TEST_PIPE", std::to_string(pipe[1]).c_str(), 1);
  EXPECT_EQ(run_other("IpcExporter.exports_and_leaves"), 0);
  ::unsetenv("DEVICE_TEST_PIPE");
  CUipcMemHandle memory{};
  ASSERT_EQ(::read(pipe[0], &memory, sizeof memory), static_cast<ssize_t>(sizeof memory));
  CUdeviceptr address = 0;
  EXPECT_EQ(open(&address, memory), CUDA_ERROR_INVALID_VALUE);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

class IpcExporter : public Driver {
 protected:
  void SetUp() override {
    if (std::getenv("DEVICE_TEST_PIPE") == nullptr) GTEST_SKIP() << "started by other tests";
    Driver::SetUp();
  }
  void TearDown() override {
    if (context != nullptr) Driver::TearDown();
  }
};

TEST_F(IpcExporter, exports_and_leaves) {
  auto const address = allocate(4096);
  CUipcMemHandle memory{};
  ASSERT_EQ(cu("cuIpcGetMemHandle", &memory, address), CUDA_SUCCESS);
  ASSERT_EQ(::write(std::atoi(std::getenv("DEVICE_TEST_PIPE")), &memory, sizeof memory),
            static_cast<ssize_t>(sizeof memory));
  free(address);
}

}  // namespace
}  // namespace device_test
