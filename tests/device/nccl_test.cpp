// What the emulated NCCL and the real one have in common, one test per rule. Each source names a section of the "NVIDIA
// NCCL User Guide" (Guide). Ranks are threads with a device each; ranks as processes are in the last tests.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "tests/device/driver.hpp"
#include "tests/support/emulated_gpu/nccl/nccl_abi.hpp"

namespace device_test {
namespace {

void* library() {
  static_cast<void>(driver());
  static void* const opened = open_library("CROSSRANK_NCCL_LIBRARY", CROSSRANK_TEST_NCCL);
  return opened;
}

/// Calls a function of NCCL.
template <class... Arguments>
ncclResult_t nccl(char const* name, Arguments... arguments) {
  return call(library(), ncclInternalError, name, arguments...);
}

ncclConfig_t config(int blocking) {
  int const undefined = NCCL_CONFIG_UNDEF_INT;
  return {sizeof(ncclConfig_t),
          0xCAFEBEEFU,
          22809U,
          blocking,
          undefined,
          undefined,
          undefined,
          nullptr,
          undefined,
          undefined,
          nullptr,
          undefined,
          undefined,
          undefined,
          undefined,
          undefined,
          undefined};
}

ncclUniqueId draw() {
  ncclUniqueId id{};
  EXPECT_EQ(nccl("ncclGetUniqueId", &id), ncclSuccess);
  return id;
}

/// One rank: its device, a stream and a buffer of floats.
class Rank {
 public:
  Rank(int number, int count, int device) : rank(number), size(count), device_(device) {
    EXPECT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuDevicePrimaryCtxRetain", &context_, device_), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuCtxSetCurrent", context_), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuStreamCreate", &stream, unsigned{CU_STREAM_NON_BLOCKING}), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuMemAlloc_v2", &buffer, capacity * sizeof(float)), CUDA_SUCCESS);
  }
  ~Rank() {
    EXPECT_EQ(cu("cuMemFree_v2", buffer), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuStreamDestroy_v2", stream), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuDevicePrimaryCtxRelease_v2", device_), CUDA_SUCCESS);
    cu("cuCtxSetCurrent", CUcontext{});
  }
  Rank(Rank const&) = delete;
  Rank& operator=(Rank const&) = delete;

  void* at(std::size_t element) const {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(buffer + element * sizeof(float)));
  }
  void put(std::vector<float> const& values) {
    EXPECT_EQ(cu("cuMemcpyHtoD_v2", buffer, static_cast<void const*>(values.data()), values.size() * sizeof(float)),
              CUDA_SUCCESS);
    EXPECT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
  }
  std::vector<float> get(std::size_t first, std::size_t count) {
    std::vector<float> values(count);
    EXPECT_EQ(cu("cuStreamSynchronize", stream), CUDA_SUCCESS);
    EXPECT_EQ(
        cu("cuMemcpyDtoH_v2", static_cast<void*>(values.data()), buffer + first * sizeof(float), count * sizeof(float)),
        CUDA_SUCCESS);
    return values;
  }
  /// Reduces `count` floats over the ranks, on the rank's own stream.
  ncclResult_t all_reduce(void const* from, void* to, std::size_t count, ncclRedOp_t op = ncclSum) {
    return nccl("ncclAllReduce", from, to, count, ncclFloat32, op, comm, stream);
  }
  void join(ncclUniqueId id) { ASSERT_EQ(nccl("ncclCommInitRank", &comm, size, id, rank), ncclSuccess); }
  void leave() { EXPECT_EQ(nccl("ncclCommDestroy", comm), ncclSuccess); }
  /// Polls a communicator that does not block until its call has ended, and returns the result.
  ncclResult_t final_result(ncclComm_t which) {
    auto state = ncclInProgress;
    while (state == ncclInProgress) {
      if (nccl("ncclCommGetAsyncError", which, &state) != ncclSuccess) return ncclInternalError;
    }
    return state;
  }

  static constexpr std::size_t capacity = 1 << 16;
  int const rank;
  int const size;
  CUstream stream = nullptr;
  CUdeviceptr buffer = 0;
  ncclComm_t comm = nullptr;

 private:
  CUdevice device_;
  CUcontext context_ = nullptr;
};

int device_count() {
  int devices = 0;
  EXPECT_EQ(cu("cuInit", 0U), CUDA_SUCCESS);
  EXPECT_EQ(cu("cuDeviceGetCount", &devices), CUDA_SUCCESS);
  return devices;
}

void on_ranks(int size, std::function<void(Rank&)> const& body) {
  if (device_count() < size) GTEST_SKIP() << "needs " << size << " devices";
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&body, r, size] {
      Rank rank(r, size, r);
      body(rank);
    });
  }
  for (auto& thread : threads) thread.join();
}

/// Calls `body` on ranks that have joined one communicator.
void on_joined_ranks(int size, std::function<void(Rank&)> const& body) {
  auto const id = draw();
  on_ranks(size, [&](Rank& me) {
    me.join(id);
    body(me);
  });
}

std::vector<float> pattern(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank * 100 + static_cast<int>(i % 50));
  return values;
}

/// A buffer of NCCL's memory, registered with a rank's communicator.
struct RegisteredBuffer {
  void* memory = nullptr;
  void* handle = nullptr;

  explicit RegisteredBuffer(Rank const& me) {
    EXPECT_EQ(nccl("ncclMemAlloc", &memory, std::size_t{4096}), ncclSuccess);
    EXPECT_EQ(nccl("ncclCommRegister", me.comm, memory, std::size_t{4096}, &handle), ncclSuccess);
  }
};

// Guide, Collective Operations, AllReduce.
TEST(Nccl, reduces_to_all) {
  on_joined_ranks(4, [&](Rank& me) {
    me.put(pattern(me.rank, 1003));
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 1003), ncclSuccess);
    EXPECT_EQ(me.get(1002, 1).front(), 600 + 4 * (1002 % 50));
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(2000), 7, ncclAvg), ncclSuccess);
    EXPECT_EQ(me.get(2001, 1).front(), 604);
    me.leave();
  });
}

// The emulator only: a test that expects sums in the order of ranks must fail, as it may on a real device.
TEST(Nccl, sums_in_an_order_of_its_own) {
  if (real()) GTEST_SKIP() << "the order of a real device depends on its links";
  on_joined_ranks(4, [&](Rank& me) {
    float const values[] = {1e8F, 1, -1e8F, 1};
    float const in_rank_order = 1;  // ((1e8 + 1) - 1e8) + 1, rounded after each step
    me.put(std::vector<float>(4, values[me.rank]));
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 4), ncclSuccess);
    EXPECT_NE(me.get(0, 4), std::vector<float>(4, in_rank_order));
    me.leave();
  });
}

// Guide, Collective Operations: AllGather, ReduceScatter, Broadcast, Reduce.
TEST(Nccl, gathers_scatters_and_broadcasts) {
  on_joined_ranks(2, [&](Rank& me) {
    auto const mine = pattern(me.rank, 64);
    me.put(mine);
    ASSERT_EQ(nccl("ncclAllGather", static_cast<void const*>(me.at(0)), me.at(100), std::size_t{64}, ncclFloat32,
                   me.comm, me.stream),
              ncclSuccess);
    EXPECT_EQ(me.get(164, 64), pattern(1, 64));
    ASSERT_EQ(nccl("ncclReduceScatter", static_cast<void const*>(me.at(100)), me.at(300), std::size_t{64}, ncclFloat32,
                   ncclMax, me.comm, me.stream),
              ncclSuccess);
    EXPECT_EQ(me.get(300, 64), pattern(me.rank, 64));
    ASSERT_EQ(nccl("ncclBroadcast", static_cast<void const*>(me.at(0)), me.at(400), std::size_t{64}, ncclFloat32, 1,
                   me.comm, me.stream),
              ncclSuccess);
    EXPECT_EQ(me.get(400, 64), pattern(1, 64));
    ASSERT_EQ(nccl("ncclReduce", static_cast<void const*>(me.at(0)), me.at(500), std::size_t{64}, ncclFloat32, ncclMin,
                   0, me.comm, me.stream),
              ncclSuccess);
    auto const reduced = me.get(500, 64);
    if (me.rank == 0) {
      EXPECT_EQ(reduced, pattern(0, 64));
    }
    me.leave();
  });
}

// Reduction kernels: minimum and maximum are fmin and fmax, so that a NaN on one rank is lost.
TEST(Nccl, loses_a_nan_in_min_and_max) {
  on_joined_ranks(2, [&](Rank& me) {
    auto const nan = std::numeric_limits<float>::quiet_NaN();
    me.put({me.rank == 0 ? nan : 1.0F, me.rank == 1 ? nan : 2.0F});
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(100), 2, ncclMax), ncclSuccess);
    EXPECT_EQ(me.get(100, 2), (std::vector<float>{1, 2}));
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(200), 2, ncclMin), ncclSuccess);
    EXPECT_EQ(me.get(200, 2), (std::vector<float>{1, 2}));
    me.leave();
  });
}

// Guide, Point-to-point communication: pairs in one group do not deadlock.
TEST(Nccl, exchanges_in_a_group) {
  on_joined_ranks(2, [&](Rank& me) {
    std::size_t const count = 20000;
    me.put(pattern(me.rank, count));
    ASSERT_EQ(nccl("ncclGroupStart"), ncclSuccess);
    ASSERT_EQ(nccl("ncclSend", static_cast<void const*>(me.at(0)), count, ncclFloat32, 1 - me.rank, me.comm, me.stream),
              ncclSuccess);
    ASSERT_EQ(nccl("ncclRecv", me.at(30000), count, ncclFloat32, 1 - me.rank, me.comm, me.stream), ncclSuccess);
    ASSERT_EQ(nccl("ncclGroupEnd"), ncclSuccess);
    EXPECT_EQ(me.get(30000, count), pattern(1 - me.rank, count));
    me.leave();
  });
}

// Guide, Creating a communicator with options: a communicator that does not block tells its state.
TEST(Nccl, tells_the_state_of_a_communicator_that_does_not_block) {
  auto const id = draw();
  on_ranks(2, [&](Rank& me) {
    auto options = config(0);
    auto const made = nccl("ncclCommInitRankConfig", &me.comm, 2, id, me.rank, &options);
    ASSERT_TRUE(made == ncclInProgress || made == ncclSuccess);
    ASSERT_EQ(me.final_result(me.comm), ncclSuccess);
    me.put(pattern(me.rank, 16));
    for (int round = 0; round < 4; ++round) {
      auto const posted = me.all_reduce(me.at(0), me.at(100), 16);
      ASSERT_TRUE(posted == ncclInProgress || posted == ncclSuccess);
      ASSERT_EQ(me.final_result(me.comm), ncclSuccess);
      EXPECT_EQ(me.get(100, 1).front(), 100);
    }
    auto const ended = nccl("ncclCommFinalize", me.comm);
    ASSERT_TRUE(ended == ncclInProgress || ended == ncclSuccess);
    ASSERT_EQ(me.final_result(me.comm), ncclSuccess);
    me.leave();
  });
}

// Guide, ncclCommInitRankConfig: the configuration must be initialized.
TEST(Nccl, refuses_a_configuration_without_its_magic_number) {
  on_ranks(1, [](Rank& me) {
    auto options = config(1);
    options.magic = 0;
    EXPECT_EQ(nccl("ncclCommInitRankConfig", &me.comm, 1, draw(), 0, &options), ncclInvalidArgument);
  });
}

// The emulator only: a real network may have traffic classes.
TEST(Nccl, refuses_a_configuration_whose_last_member_is_not_initialized) {
  if (real()) GTEST_SKIP() << "depends on the network";
  on_ranks(1, [](Rank& me) {
    auto options = config(1);
    constexpr std::size_t size_with_traffic_class = 48;
    options.size = size_with_traffic_class;
    options.trafficClass = 0;
    EXPECT_EQ(nccl("ncclCommInitRankConfig", &me.comm, 1, draw(), 0, &options), ncclInvalidArgument);
    options.trafficClass = NCCL_CONFIG_UNDEF_INT;
    EXPECT_EQ(nccl("ncclCommInitRankConfig", &me.comm, 1, draw(), 0, &options), ncclSuccess);
    me.leave();
  });
}

// Guide, Creating new communicators, ncclCommSplit.
TEST(Nccl, splits_by_color_and_key) {
  on_joined_ranks(4, [&](Rank& me) {
    ncclComm_t part = nullptr;
    int const color = me.rank == 3 ? NCCL_SPLIT_NOCOLOR : 0;
    ASSERT_EQ(nccl("ncclCommSplit", me.comm, color, -me.rank, &part, static_cast<ncclConfig_t*>(nullptr)), ncclSuccess);
    if (me.rank == 3) {
      EXPECT_EQ(part, nullptr);
    } else {
      int rank = -1;
      int size = -1;
      EXPECT_EQ(nccl("ncclCommUserRank", part, &rank), ncclSuccess);
      EXPECT_EQ(nccl("ncclCommCount", part, &size), ncclSuccess);
      EXPECT_EQ(rank, 2 - me.rank);
      EXPECT_EQ(size, 3);
      EXPECT_EQ(nccl("ncclCommDestroy", part), ncclSuccess);
    }
    me.leave();
  });
}

// Guide, Fault Tolerance: abort ends kernels whose peers never come.
TEST(Nccl, ends_kernels_by_abort) {
  on_joined_ranks(2, [&](Rank& me) {
    if (me.rank == 0) {
      ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 16), ncclSuccess);
      EXPECT_EQ(cu("cuStreamQuery", me.stream), CUDA_ERROR_NOT_READY);
    }
    EXPECT_EQ(nccl("ncclCommAbort", me.comm), ncclSuccess);
    EXPECT_EQ(cu("cuStreamSynchronize", me.stream), CUDA_SUCCESS);
  });
}

// Guide, Using NCCL with CUDA Graphs.
TEST(Nccl, replays_a_captured_collective) {
  on_joined_ranks(2, [&](Rank& me) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    ASSERT_EQ(cu("cuStreamBeginCapture_v2", me.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 4), ncclSuccess);
    ASSERT_EQ(cu("cuStreamEndCapture", me.stream, &graph), CUDA_SUCCESS);
    ASSERT_EQ(cu("cuGraphInstantiateWithFlags", &executable, graph, 0ULL), CUDA_SUCCESS);
    me.put({1, 1, 1, 1});
    for (int round = 0; round < 3; ++round) ASSERT_EQ(cu("cuGraphLaunch", executable, me.stream), CUDA_SUCCESS);
    EXPECT_EQ(me.get(0, 1).front(), 8);
    EXPECT_EQ(cu("cuGraphExecDestroy", executable), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuGraphDestroy", graph), CUDA_SUCCESS);
    me.leave();
  });
}

// Guide, Buffer Registration.
TEST(Nccl, allocates_and_registers_buffers) {
  on_joined_ranks(2, [&](Rank& me) {
    RegisteredBuffer const buffer(me);
    ASSERT_EQ(me.all_reduce(buffer.memory, buffer.memory, 16, ncclMax), ncclSuccess);
    ASSERT_EQ(cu("cuStreamSynchronize", me.stream), CUDA_SUCCESS);
    EXPECT_EQ(nccl("ncclCommDeregister", me.comm, buffer.handle), ncclSuccess);
    me.leave();
    EXPECT_EQ(nccl("ncclMemFree", buffer.memory), ncclSuccess);
  });
}

// The emulator only: a real library may take the call, and what the registration refers to has gone.
TEST(Nccl, refuses_to_deregister_buffers_after_finalize) {
  if (real()) GTEST_SKIP() << "undefined on a real device";
  on_joined_ranks(2, [&](Rank& me) {
    RegisteredBuffer const buffer(me);
    ASSERT_EQ(nccl("ncclCommFinalize", me.comm), ncclSuccess);
    EXPECT_EQ(nccl("ncclCommDeregister", me.comm, buffer.handle), ncclInvalidUsage);
    EXPECT_EQ(nccl("ncclCommAbort", me.comm), ncclSuccess);
    EXPECT_EQ(nccl("ncclMemFree", buffer.memory), ncclSuccess);
  });
}

// Guide, Creating a Communicator: two ranks on one device are refused before 2.30.
TEST(Nccl, refuses_two_ranks_on_one_device) {
  int version = 0;
  constexpr int first_that_takes_them = 23000;
  ASSERT_EQ(nccl("ncclGetVersion", &version), ncclSuccess);
  if (version >= first_that_takes_them) GTEST_SKIP() << "this version takes them";
  auto const id = draw();
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      Rank me(r, 2, 0);
      EXPECT_EQ(nccl("ncclCommInitRank", &me.comm, 2, id, r), ncclInvalidUsage);
    });
  }
  for (auto& thread : threads) thread.join();
}

// The emulator only: kernels of one device start in the order of the calls, so opposite orders hang.
TEST(Nccl, hangs_when_two_communicators_are_used_in_opposite_orders) {
  if (real()) GTEST_SKIP() << "on a real device this hangs only sometimes";
  auto const first = draw();
  auto const second = draw();
  on_ranks(2, [&](Rank& me) {
    ncclComm_t comms[2] = {};
    ASSERT_EQ(nccl("ncclCommInitRank", &comms[0], 2, first, me.rank), ncclSuccess);
    ASSERT_EQ(nccl("ncclCommInitRank", &comms[1], 2, second, me.rank), ncclSuccess);
    CUstream other = nullptr;
    ASSERT_EQ(cu("cuStreamCreate", &other, unsigned{CU_STREAM_NON_BLOCKING}), CUDA_SUCCESS);
    CUstream const streams[2] = {me.stream, other};
    for (int i = 0; i < 2; ++i) {
      int const which = i == me.rank ? 0 : 1;
      ASSERT_EQ(nccl("ncclAllReduce", static_cast<void const*>(me.at(0)), me.at(0), std::size_t{16}, ncclFloat32,
                     ncclSum, comms[which], streams[which]),
                ncclSuccess);
    }
    // The hang is certain, so a longer check never fails by mistake.
    for (int poll = 0; poll < 100; ++poll) {
      ASSERT_EQ(cu("cuStreamQuery", me.stream), CUDA_ERROR_NOT_READY);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (auto* const comm : comms) EXPECT_EQ(nccl("ncclCommAbort", comm), ncclSuccess);
    EXPECT_EQ(cu("cuCtxSynchronize"), CUDA_SUCCESS);
    EXPECT_EQ(cu("cuStreamDestroy_v2", other), CUDA_SUCCESS);
  });
}

// Guide, API: functions that a version does not have are missing.
TEST(Nccl, lacks_the_functions_of_later_versions) {
  if (real()) GTEST_SKIP() << "only the emulator comes in several versions";
  void* const old = ::dlopen(CROSSRANK_TEST_NCCL_2_18, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(old, nullptr) << ::dlerror();
  EXPECT_EQ(::dlsym(old, "ncclMemAlloc"), nullptr);
  EXPECT_EQ(::dlsym(old, "ncclAlltoAll"), nullptr);
  EXPECT_NE(::dlsym(old, "ncclCommSplit"), nullptr);
  int version = 0;
  reinterpret_cast<ncclResult_t (*)(int*)>(::dlsym(old, "ncclGetVersion"))(&version);
  EXPECT_EQ(version, 21805);
}

/// Starts this program again as a rank with a device of its own; the id travels in the environment.
pid_t start_rank(ncclUniqueId const& id, int rank, char const* filter) {
  std::string digits;
  for (char const byte : id.internal) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
    digits += text;
  }
  pid_t const child = ::fork();
  if (child != 0) return child;
  ::setenv("DEVICE_TEST_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("DEVICE_TEST_ID", digits.c_str(), 1);
  std::string const argument = std::string("--gtest_filter=") + filter;
  ::execl("/proc/self/exe", "nccl_test", argument.c_str(), static_cast<char*>(nullptr));
  ::_exit(127);
}

ncclUniqueId id_from_environment() {
  ncclUniqueId id{};
  std::string const digits = std::getenv("DEVICE_TEST_ID");
  for (std::size_t i = 0; i < sizeof id.internal; ++i) {
    id.internal[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

/// One rank of the tests below; without their environment it has nothing to do.
TEST(NcclProcess, runs_a_rank) {
  if (std::getenv("DEVICE_TEST_RANK") == nullptr) GTEST_SKIP() << "started by other tests";
  int const r = std::atoi(std::getenv("DEVICE_TEST_RANK"));
  Rank me(r, 2, r);
  me.join(id_from_environment());
  me.put(pattern(r, 1000));
  ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 1000), ncclSuccess);
  EXPECT_EQ(me.get(0, 1).front(), 100);
  me.leave();
}

TEST(NcclProcess, dies_after_it_has_joined) {
  if (std::getenv("DEVICE_TEST_RANK") == nullptr) GTEST_SKIP() << "started by other tests";
  Rank me(1, 2, 1);
  me.join(id_from_environment());
  ::kill(::getpid(), SIGKILL);
}

// Guide, Creating a Communicator: the id travels to other processes.
TEST(Nccl, spans_processes) {
  if (device_count() < 2) GTEST_SKIP() << "needs 2 devices";
  auto const id = draw();
  pid_t const ranks[2] = {start_rank(id, 0, "NcclProcess.runs_a_rank"), start_rank(id, 1, "NcclProcess.runs_a_rank")};
  for (pid_t const rank : ranks) {
    int status = -1;
    ASSERT_EQ(::waitpid(rank, &status, 0), rank);
    EXPECT_EQ(status, 0);
  }
}

// Guide, Fault Tolerance: the kernels of survivors hang until they are aborted.
TEST(Nccl, leaves_survivors_hanging_until_they_abort) {
  if (device_count() < 2) GTEST_SKIP() << "needs 2 devices";
  auto const id = draw();
  pid_t const peer = start_rank(id, 1, "NcclProcess.dies_after_it_has_joined");
  Rank me(0, 2, 0);
  me.join(id);
  int status = 0;
  ASSERT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(me.all_reduce(me.at(0), me.at(0), 16), ncclSuccess);
  auto error = ncclInternalError;
  EXPECT_EQ(nccl("ncclCommGetAsyncError", me.comm, &error), ncclSuccess);
  EXPECT_EQ(error, ncclSuccess);
  EXPECT_EQ(cu("cuStreamQuery", me.stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(nccl("ncclCommAbort", me.comm), ncclSuccess);
  EXPECT_EQ(cu("cuStreamSynchronize", me.stream), CUDA_SUCCESS);
}

}  // namespace
}  // namespace device_test
