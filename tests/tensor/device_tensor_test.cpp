// Tensors on GPUs, on the emulated driver: a host access to device memory crashes, streams run late, and a leak or a
// misuse is reported.
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/error.hpp>
#include <crossrank/log.hpp>
#include <crossrank/spi/device_provider.hpp>
#include <crossrank/tensor.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/emulated_driver.hpp"
#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank {
namespace {

using test::calls;
using test::fail_call;
using test::live;
using test::reports;
using test::thrown;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);
constexpr auto other_gpu = Device::cuda(1);

class DeviceTensor : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1); }
  void TearDown() override { EXPECT_EQ(reports(), 0U); }
};

Tensor numbers(Shape const& shape) {
  std::vector<float> values(as_size(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0F);
  return Tensor::of(values, shape);
}

std::vector<float> host_values(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const values = host.as<float>();
  return {values.begin(), values.end()};
}

TEST_F(DeviceTensor, goes_to_the_gpu_and_back) {
  auto const there = numbers({3}).to(gpu);
  EXPECT_EQ(there.device(), gpu);
  EXPECT_THAT(host_values(there), ElementsAre(0, 1, 2));
}

TEST_F(DeviceTensor, zeros_clone_narrow_and_reshape_stay_on_the_gpu) {
  EXPECT_THAT(host_values(Tensor::zeros({2}, Dtype::f32, gpu)), ElementsAre(0, 0));
  auto const there = numbers({2, 3}).to(gpu);
  EXPECT_EQ(there.clone().device(), gpu);
  EXPECT_THAT(host_values(there.clone()), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(host_values(there.narrow(0, 1, 1).reshape({3})), ElementsAre(3, 4, 5));
}

TEST_F(DeviceTensor, slices_and_joins_inner_dimensions_without_the_host) {
  auto const there = numbers({2, 3}).to(gpu);
  auto const downloads = calls("cuMemcpyDtoHAsync_v2");
  auto const left = slice(there, {1}, 0, 1);
  auto const right = slice(there, {1}, 1, 2);
  auto const copies = calls("copy");
  auto const joined = concat(std::vector{right, left}, {1});
  EXPECT_EQ(calls("copy"), copies + 2) << "one strided copy for each tensor";
  EXPECT_EQ(calls("cuMemcpyDtoHAsync_v2"), downloads);
  EXPECT_THAT(host_values(left), ElementsAre(0, 3));
  EXPECT_THAT(host_values(joined), ElementsAre(1, 2, 0, 4, 5, 3));
}

TEST_F(DeviceTensor, pinned_memory_is_host_memory_that_may_change_after_to) {
  auto pinned = Tensor::zeros({4}, Dtype::f32, MemoryOptions{.pinned = true});
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_EQ(pinned.device(), Device::cpu());
  auto const there = pinned.to(gpu);
  pinned.as_mutable<float>()[0] = 7;
  EXPECT_THAT(host_values(there), ElementsAre(0, 0, 0, 0));
}

/// Memory that another library has page-locked, such as a pinned tensor of PyTorch: its storage does not know it.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(std::int64_t bytes)
      : memory_(Tensor::zeros({bytes}, Dtype::u8)),
        registration_(spi::device_provider(Device::Kind::cuda)
                          .register_host(memory_.bytes(), spi::DeviceProvider::HostAccess::read_write)) {}
  /// Returns a tensor of the memory that calls `on_end` when the last view is gone.
  [[nodiscard]] Tensor borrow(std::function<void(void*)> on_end = {}) {
    return Tensor::from_blob(memory_.data(), memory_.shape(), Dtype::u8, std::move(on_end));
  }
  void overwrite() { std::memset(memory_.data(), 9, memory_.nbytes()); }

 private:
  Tensor memory_;
  std::shared_ptr<void> registration_;
};

TEST_F(DeviceTensor, memory_that_another_library_locked_may_change_after_to) {
  RegisteredMemory memory(1 << 20);
  auto const source = memory.borrow();
  EXPECT_FALSE(source.is_pinned());
  auto const there = source.to(gpu);
  memory.overwrite();
  auto const back = there.to(Device::cpu());
  EXPECT_THAT(back.bytes(), testing::Each(std::byte{0}));
}

TEST_F(DeviceTensor, memory_that_another_library_locked_lives_until_a_non_blocking_copy_has_ended) {
  auto const stream = Stream::create(gpu);
  StreamGuard const guard(stream);
  RegisteredMemory memory(4'096);
  auto there = Tensor::empty({4'096}, Dtype::u8, gpu);
  bool ended = false;
  {
    test::HeldStream const held(stream.native());
    there.copy_from(memory.borrow([&](void*) { ended = true; }), {.non_blocking = true});
    EXPECT_FALSE(ended);
  }
  stream.synchronize();
  cuda::trim(gpu);
  EXPECT_TRUE(ended);
}

TEST_F(DeviceTensor, non_blocking_download_lands_when_the_stream_has_passed) {
  auto const there = numbers({3}).to(gpu);
  auto const host = there.to(Device::cpu(), {.non_blocking = true});
  current_stream(gpu).synchronize();
  EXPECT_THAT(host.as<float>(), ElementsAre(0, 1, 2));
}

TEST_F(DeviceTensor, copy_from_overwrites_the_bytes) {
  auto there = Tensor::empty({3}, Dtype::f32, gpu);
  there.copy_from(numbers({3}));
  EXPECT_THAT(host_values(there), ElementsAre(0, 1, 2));
  EXPECT_THROW(there.copy_from(numbers({4})), UsageError);
}

TEST_F(DeviceTensor, memory_is_freed_after_the_streams_that_used_it) {
  auto const side = Stream::create(gpu);
  Tensor out;
  {
    auto const there = numbers({1024}).to(gpu);
    side.wait(current_stream(gpu).record());
    StreamGuard const guard(side);
    out = there.clone();
  }
  StreamGuard const guard(side);
  EXPECT_EQ(host_values(out).back(), 1023);
}

TEST_F(DeviceTensor, streams_end_although_a_tensor_that_they_have_read_lives_on) {
  auto const there = numbers({16}).to(gpu);
  current_stream(gpu).synchronize();
  for (int i = 0; i < 100; ++i) {
    auto const side = Stream::create(gpu);
    StreamGuard const guard(side);
    auto const copy = there.clone();
    side.synchronize();
  }
  EXPECT_LE(test::live("stream"), 20U);
}

TEST_F(DeviceTensor, a_thread_can_have_a_default_device_of_its_own) {
  auto const own = default_device();
  set_default_device(other_gpu);
  EXPECT_EQ(default_device(), other_gpu);
  std::thread([&] { EXPECT_EQ(default_device(), own); }).join();
  EXPECT_THROW(set_default_device(Device::cuda(77)), UsageError);
  EXPECT_EQ(default_device(), other_gpu);
  set_default_device({});
  EXPECT_EQ(default_device(), own);
}

TEST_F(DeviceTensor, guards_nest_and_end) {
  auto const first = Stream::create(gpu);
  EXPECT_EQ(current_stream(gpu).native(), nullptr);
  {
    StreamGuard const outer(first);
    { StreamGuard const inner(Stream::create(gpu)); }
    EXPECT_EQ(current_stream(gpu), first);
    EXPECT_EQ(current_stream(other_gpu).native(), nullptr);
  }
  EXPECT_EQ(current_stream(gpu).native(), nullptr);
}

TEST_F(DeviceTensor, guards_may_end_in_any_order) {
  auto const first = Stream::create(gpu);
  auto const second = Stream::create(gpu);
  auto outer = std::make_unique<StreamGuard>(first);
  auto const elsewhere = std::make_unique<StreamGuard>(Stream::create(other_gpu));
  auto inner = std::make_unique<StreamGuard>(second);
  outer.reset();
  EXPECT_EQ(current_stream(gpu), second);
  inner.reset();
  EXPECT_EQ(current_stream(gpu).native(), nullptr);
}

TEST_F(DeviceTensor, empty_tensors_do_not_touch_the_gpu) {
  auto const there = Tensor::empty({0}, Dtype::f32, gpu);
  EXPECT_EQ(there.device(), gpu);
  EXPECT_EQ(there.to(Device::cpu()).numel(), 0);
  EXPECT_EQ(calls("cuMemAllocFromPoolAsync"), 0U);
}

TEST_F(DeviceTensor, elements_of_a_gpu_name_the_way_to_the_host) {
  auto const there = numbers({3}).to(gpu);
  EXPECT_THAT(thrown<UsageError>([&] { (void)there.as<float>(); }).what(), HasSubstr("to(Device::cpu())"));
}

TEST_F(DeviceTensor, refuses_a_host_pointer_as_memory_of_a_gpu) {
  std::vector<float> host(4);
  auto const error = thrown<UsageError>([&] { (void)Tensor::from_blob(host.data(), {4}, Dtype::f32, gpu); });
  EXPECT_EQ(error.info().expected, "memory of cuda:0");
  auto pinned = Tensor::zeros({4}, Dtype::f32, MemoryOptions{.pinned = true});
  EXPECT_THROW((void)Tensor::from_blob(pinned.data(), {4}, Dtype::f32, gpu), UsageError);
}

TEST_F(DeviceTensor, refuses_a_blob_of_another_gpu_and_one_that_is_too_long) {
  auto const there = Tensor::zeros({4}, Dtype::f32, gpu);
  EXPECT_THROW((void)Tensor::from_blob(there.data(), {4}, Dtype::f32, other_gpu), UsageError);
  EXPECT_THROW((void)Tensor::from_blob(there.data(), {1 << 28}, Dtype::f32, gpu), UsageError);
  EXPECT_THAT(host_values(Tensor::from_blob(there.data(), {4}, Dtype::f32, gpu)), ElementsAre(0, 0, 0, 0));
}

/// Memory of two physical allocations at adjacent addresses, as PyTorch's expandable segments have it.
class MappedMemory {
 public:
  static constexpr std::size_t half = std::size_t{2} << 20;

  MappedMemory() {
    static_cast<void>(cuda::device_info(gpu));  // initializes the driver
    test::use_gpu_context();
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemAccessDesc const access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    call<CUdeviceptr*, std::size_t, std::size_t, CUdeviceptr, unsigned long long>("cuMemAddressReserve", &data_,
                                                                                  2 * half, 0, 0, 0);
    for (std::size_t i = 0; i < 2; ++i) {
      call<CUmemGenericAllocationHandle*, std::size_t, CUmemAllocationProp const*, unsigned long long>(
          "cuMemCreate", &physical_[i], half, &properties, 0);
      call<CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long>(
          "cuMemMap", data_ + i * half, half, 0, physical_[i], 0);
    }
    call<CUdeviceptr, std::size_t, CUmemAccessDesc const*, std::size_t>("cuMemSetAccess", data_, 2 * half, &access, 1);
  }
  ~MappedMemory() {
    call<CUdeviceptr, std::size_t>("cuMemUnmap", data_, 2 * half);
    for (auto const handle : physical_) call<CUmemGenericAllocationHandle>("cuMemRelease", handle);
    call<CUdeviceptr, std::size_t>("cuMemAddressFree", data_, 2 * half);
  }
  MappedMemory(MappedMemory const&) = delete;
  MappedMemory& operator=(MappedMemory const&) = delete;

  [[nodiscard]] void* data() const { return reinterpret_cast<void*>(data_); }

 private:
  template <class... Arguments>
  static void call(char const* name, Arguments... arguments) {
    EXPECT_EQ(test::emulated<CUresult(Arguments...)>(name)(arguments...), CUDA_SUCCESS) << name;
  }

  CUdeviceptr data_ = 0;
  std::array<CUmemGenericAllocationHandle, 2> physical_{};
};

TEST_F(DeviceTensor, borrows_memory_that_is_mapped_in_several_pieces) {
  MappedMemory const memory;
  constexpr auto bytes = static_cast<std::int64_t>(2 * MappedMemory::half);
  auto there = Tensor::from_blob(memory.data(), {bytes}, Dtype::u8, gpu);
  EXPECT_EQ(there.nbytes(), 2 * MappedMemory::half);
  auto const across = Tensor::from_blob(static_cast<std::byte*>(memory.data()) + 8, {bytes - 8}, Dtype::u8, gpu);
  EXPECT_EQ(across.nbytes(), 2 * MappedMemory::half - 8);
  auto const error = thrown<UsageError>([&] { (void)Tensor::from_blob(memory.data(), {bytes + 1}, Dtype::u8, gpu); });
  EXPECT_THAT(error.info().got, HasSubstr(std::to_string(bytes) + " bytes up to the end"));
}

TEST_F(DeviceTensor, refuses_parts_of_two_gpus) {
  std::vector const parts{numbers({2}).to(gpu), numbers({2}).to(other_gpu)};
  EXPECT_THAT(thrown<UsageError>([&] { (void)concat(parts); }).what(), HasSubstr("cuda:1"));
}

TEST_F(DeviceTensor, refuses_a_gpu_that_does_not_exist) {
  EXPECT_THAT(thrown<UsageError>([] { (void)Tensor::zeros({1}, Dtype::u8, Device::cuda(9)); }).what(),
              HasSubstr("cuda:9"));
}

TEST_F(DeviceTensor, says_how_much_memory_is_left) {
  auto const error = thrown<UnavailableError>([] { (void)Tensor::empty({std::int64_t{1} << 33}, Dtype::u8, gpu); });
  EXPECT_THAT(error.info().got, HasSubstr("8589934592"));
  EXPECT_THAT(error.info().expected, HasSubstr("bytes are free"));
}

TEST_F(DeviceTensor, a_sticky_error_ends_the_use_of_cuda) {
  auto const there = numbers({3}).to(gpu);
  for (int const code : {220, 226, 700, 911, 999}) {
    fail_call("cuMemcpyDtoDAsync_v2", 1, code);
    auto const error = thrown<BackendError>([&] { (void)there.clone(); });
    EXPECT_FALSE(error.group_usable()) << code;
  }
}

TEST_F(DeviceTensor, the_per_thread_default_stream_is_refused) {
  auto const error = thrown<UsageError>([] { (void)cuda::borrow_stream(CU_STREAM_PER_THREAD, gpu); });
  EXPECT_THAT(error.info().hint, HasSubstr("Stream::create"));
  EXPECT_EQ(cuda::borrow_stream(nullptr, gpu), current_stream(gpu));
}

TEST_F(DeviceTensor, a_child_after_fork_gets_a_usage_error) {
  auto const there = numbers({3}).to(gpu);
  auto const child = ::fork();
  if (child == 0) {
    int code = 1;
    try {
      (void)there.clone();
    } catch (UsageError const&) {
      code = 0;
    } catch (...) {
      code = 2;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(DeviceTensor, a_plugged_allocator_serves_and_gets_its_memory_back) {
  static std::vector<Tensor> backing;
  static int freed = 0;
  (void)Tensor::zeros({1}, Dtype::u8, gpu);
  backing.push_back(Tensor::zeros({64}, Dtype::u8, gpu));
  auto* const memory = backing.front().data();
  cuda::set_allocator({.allocate = [memory](std::size_t, int, CUstream_st*) -> void* { return memory; },
                       .free = [](void*, std::size_t, int, CUstream_st*) { ++freed; }});
  { EXPECT_EQ(Tensor::empty({8}, Dtype::u8, gpu).data(), memory); }
  cuda::set_allocator({});
  EXPECT_EQ(freed, 1);
  EXPECT_THROW(cuda::set_allocator({.allocate = {}, .free = [](void*, std::size_t, int, CUstream_st*) {}}), UsageError);
  backing.clear();
}

TEST_F(DeviceTensor, shareable_memory_is_freed_after_its_stream) {
  {
    auto const there = Tensor::zeros({64}, Dtype::u8, MemoryOptions{.device = gpu, .shareable = true});
    EXPECT_EQ(there.to(Device::cpu()).bytes()[0], std::byte{0});
  }
  current_stream(gpu).synchronize();
  cuda::trim(gpu);
  EXPECT_EQ(live("allocation"), 0U);
}

TEST_F(DeviceTensor, a_registered_mapping_is_registered_once_and_released) {
  auto const page = Tensor::zeros({8192}, Dtype::u8);
  auto& provider = spi::device_provider(Device::Kind::cuda);
  {
    auto const held = provider.register_host(page.bytes(), spi::DeviceProvider::HostAccess::read_write);
    EXPECT_EQ(calls("cuMemHostRegister_v2"), 1U);
  }
  EXPECT_EQ(calls("cuMemHostUnregister"), 1U);
}

/// Returns how many log events have `message` while `body` runs.
template <class Body>
int logged(std::string const& message, Body const& body) {
  static int count = 0;
  count = 0;
  set_log_sink([message](LogEvent const& event) { count += event.message.find(message) != std::string::npos ? 1 : 0; });
  body();
  set_log_sink({});
  return count;
}

TEST_F(DeviceTensor, logs_what_the_deleter_of_borrowed_memory_throws) {
  auto const there = Tensor::zeros({4}, Dtype::u8, gpu);
  std::string logged_text;
  set_log_sink([&](LogEvent const& event) {
    for (auto const& field : event.fields) logged_text += field.value;
  });
  (void)Tensor::from_blob(there.data(), {4}, Dtype::u8, gpu, [](void*) { throw std::runtime_error("no owner"); });
  set_log_sink({});
  EXPECT_EQ(logged_text, "no owner");
}

TEST_F(DeviceTensor, a_gpu_without_its_pool_allocates_each_tensor) {
  fail_call("cuMemPoolCreate", 1, 801);
  EXPECT_EQ(logged("has no memory pool",
                   [] {
                     EXPECT_THAT(host_values(numbers({3}).to(gpu)), ElementsAre(0, 1, 2));
                     EXPECT_THAT(host_values(numbers({2}).to(gpu)), ElementsAre(0, 1));
                   }),
            1);
  EXPECT_EQ(calls("cuMemAllocFromPoolAsync"), 0U);
  EXPECT_EQ(calls("cuDevicePrimaryCtxRetain"), 1U);
  EXPECT_FALSE(cuda::device_info(gpu).has_memory_pools);
}

/// A driver that is installed and does not start, for example after an update without a restart.
class UnusableDriver : public DeviceTensor, public testing::WithParamInterface<std::pair<char const*, int>> {};

TEST_P(UnusableDriver, is_unavailable_and_means_no_gpu) {
  auto const [function, code] = GetParam();
  fail_call(function, 1, code);
  auto const use = [] {
    EXPECT_EQ(cuda::device_count(), 0);
    EXPECT_EQ(cuda::device_count(), 0);
    EXPECT_EQ(default_device(), Device::cpu());
  };
  EXPECT_EQ(logged("the NVIDIA driver cannot be used", use), 1);
  auto const error = thrown<UnavailableError>([] { (void)cuda::driver_info(); });
  EXPECT_EQ(error.info().message, std::string(function) + " failed");
  EXPECT_FALSE(error.info().system.empty());
  EXPECT_EQ(calls(function), 1U) << "the driver is not asked again";
}

INSTANTIATE_TEST_SUITE_P(Results, UnusableDriver,
                         testing::Values(std::pair("cuInit", 999), std::pair("cuInit", 804), std::pair("cuInit", 304),
                                         std::pair("cuDeviceGetCount", 999)));

TEST_F(DeviceTensor, says_once_that_an_installed_driver_is_too_old) {
  ::setenv("EMULATED_GPU_DRIVER_VERSION", "10020", 1);
  auto const use = [] {
    EXPECT_EQ(default_device(), Device::cpu());
    EXPECT_EQ(default_device(), Device::cpu());
  };
  EXPECT_EQ(logged("the NVIDIA driver cannot be used", use), 1);
  EXPECT_THROW((void)cuda::driver_info(), UnavailableError);
}

TEST_F(DeviceTensor, gpus_behind_nvswitches_are_unavailable_without_their_manager) {
  fail_call("cuInit", 1, 802);
  auto const error = thrown<UnavailableError>([] { (void)cuda::driver_info(); });
  EXPECT_THAT(error.info().hint, HasSubstr("nvidia-fabricmanager"));
}

/// Ranks of a node with more ranks than GPUs.
class RanksOfANode : public DeviceTensor {
 protected:
  /// Returns how often a rank says that it shares its GPU, with the GPUs that the variable names.
  static int warnings(char const* visible) {
    ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    for (auto const* name : {"RANK", "LOCAL_RANK"}) ::setenv(name, "2", 1);
    for (auto const* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) ::setenv(name, "4", 1);
    return logged("ranks of this node share a GPU", [] { EXPECT_EQ(default_device(), gpu); });
  }
};

TEST_F(RanksOfANode, share_the_gpus_that_all_of_them_see) { EXPECT_EQ(warnings("0,1"), 1); }
TEST_F(RanksOfANode, do_not_share_when_each_sees_one_of_its_own) { EXPECT_EQ(warnings("1"), 0); }

TEST_F(DeviceTensor, reports_name_each_gpu) {
  auto const info = cuda::device_info(gpu);
  EXPECT_FALSE(info.name.empty());
  EXPECT_THAT(info.uuid, HasSubstr("GPU-"));
  EXPECT_EQ(info.uuid.size(), 40U);
  EXPECT_EQ(cuda::device_count(), 2);
  EXPECT_EQ(default_device(), gpu);
}

}  // namespace
}  // namespace crossrank
