// Tensors from and for other libraries by DLPack, on the CPU and on emulated GPUs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/cuda.hpp>
#include <crossrank/dlpack.hpp>
#include <crossrank/error.hpp>

#include "tests/support/emulated_driver.hpp"

namespace crossrank {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto gpu = Device::cuda(0);

class Dlpack : public testing::Test {
 protected:
  static void SetUpTestSuite() { ::setenv("CROSSRANK_CUDA_LIBRARY", CROSSRANK_TEST_CUDA, 1); }
};

/// A tensor of another library. Counts how often it was given back.
struct Foreign {
  dlpack::ManagedVersioned managed{};
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};
  int* given_back = nullptr;
};

struct ForeignParts {
  void* data = nullptr;
  dlpack::Device device{.type = dlpack::device_cpu, .index = 0};
  dlpack::DataType dtype{.code = dlpack::type_float, .bits = 32, .lanes = 1};
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};
  std::uint64_t byte_offset = 0;
  std::uint64_t flags = 0;
  std::uint32_t major = 1;
};

dlpack::OwnedVersioned foreign(ForeignParts const& parts, int& given_back) {
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): the deleter frees it
  auto* const made = new Foreign{.shape = parts.shape, .strides = parts.strides, .given_back = &given_back};
  made->managed = {.version = {.major = parts.major, .minor = 1},
                   .context = made,
                   .deleter =
                       [](dlpack::ManagedVersioned* self) {
                         std::unique_ptr<Foreign> const whole(static_cast<Foreign*>(self->context));
                         ++*whole->given_back;
                       },
                   .flags = parts.flags,
                   .tensor = {.data = parts.data,
                              .device = parts.device,
                              .ndim = static_cast<std::int32_t>(made->shape.size()),
                              .dtype = parts.dtype,
                              .shape = made->shape.data(),
                              .strides = parts.strides.empty() ? nullptr : made->strides.data(),
                              .byte_offset = parts.byte_offset}};
  return dlpack::OwnedVersioned(&made->managed);
}

std::vector<float> counted(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

std::vector<float> values_of(Tensor const& tensor) {
  auto const host = tensor.to(Device::cpu());
  auto const values = host.as<float>();
  return {values.begin(), values.end()};
}

std::string refused(dlpack::OwnedVersioned tensor, DlpackImport const& options = {}) {
  try {
    static_cast<void>(from_dlpack(std::move(tensor), options));
  } catch (UsageError const& e) {
    return e.what();
  }
  return "not refused";
}

TEST_F(Dlpack, shares_dense_memory_until_the_last_view_is_gone) {
  auto values = counted(6);
  int given_back = 0;
  {
    auto tensor = from_dlpack(foreign({.data = values.data(), .shape = {2, 2}, .byte_offset = 8}, given_back));
    EXPECT_EQ(static_cast<void*>(tensor.data()), values.data() + 2);
    EXPECT_EQ(tensor.shape(), Shape({2, 2}));
    EXPECT_THAT(tensor.as<float>(), ElementsAre(2, 3, 4, 5));
    auto const view = tensor.narrow(0, 1, 1);
    tensor = {};
    EXPECT_EQ(given_back, 0);
  }
  EXPECT_EQ(given_back, 1);
}

TEST_F(Dlpack, keeps_the_read_only_flag) {
  auto values = counted(2);
  int given_back = 0;
  auto tensor =
      from_dlpack(foreign({.data = values.data(), .shape = {2}, .flags = dlpack::flag_read_only}, given_back));
  EXPECT_THROW(static_cast<void>(tensor.as_mutable<float>()), UsageError);
  EXPECT_EQ(to_dlpack(tensor)->flags, dlpack::flag_read_only);
  EXPECT_EQ(to_dlpack(tensor, {.copy = DlpackCopy::always})->flags, dlpack::flag_copied);
  EXPECT_THROW(static_cast<void>(to_dlpack_unversioned(tensor)), UsageError);
  EXPECT_NE(to_dlpack_unversioned(tensor, {.copy = DlpackCopy::always})->tensor.data, values.data());
}

/// Strides, and the elements that they give of 0, 1, 2, ...
struct StridesCase {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t first;
  std::vector<float> expected;
};

std::vector<StridesCase> strides_cases() {
  return {
      {{3, 2}, {1, 3}, 0, {0, 3, 1, 4, 2, 5}},                 // transposed
      {{2, 2}, {4, 1}, 1, {1, 2, 5, 6}},                       // columns of a matrix
      {{4}, {-1}, 3, {3, 2, 1, 0}},                            // backward
      {{2, 3}, {0, 1}, 2, {2, 3, 4, 2, 3, 4}},                 // repeated
      {{2, 2, 2}, {8, 4, 2}, 0, {0, 2, 4, 6, 8, 10, 12, 14}},  // every second element
      {{2, 1, 2}, {6, 77, 1}, 0, {0, 1, 6, 7}},                // a stride that nothing uses
      {{2, 2, 2}, {1, 2, 6}, 0, {0, 6, 2, 8, 1, 7, 3, 9}},     // several outer dimensions
  };
}

TEST_F(Dlpack, packs_strides_on_the_device_of_the_tensor) {
  auto values = counted(16);
  auto const there = Tensor::of(values, {16}).to(gpu);
  for (auto const& one : strides_cases()) {
    for (bool const on_gpu : {false, true}) {
      int given_back = 0;
      auto* const data = on_gpu ? there.data() : reinterpret_cast<std::byte*>(values.data());
      ForeignParts const parts{.data = data,
                               .device = {.type = on_gpu ? dlpack::device_cuda : dlpack::device_cpu, .index = 0},
                               .shape = one.shape,
                               .strides = one.strides,
                               .byte_offset = static_cast<std::uint64_t>(one.first) * sizeof(float)};
      auto const downloads = test::calls("cuMemcpyDtoHAsync_v2");
      auto const tensor = from_dlpack(foreign(parts, given_back));
      EXPECT_EQ(test::calls("cuMemcpyDtoHAsync_v2"), downloads) << "packed through the host";
      EXPECT_EQ(tensor.device(), on_gpu ? gpu : Device::cpu());
      EXPECT_EQ(values_of(tensor), one.expected);
      EXPECT_THAT(refused(foreign(parts, given_back), {.copy = DlpackCopy::never}), HasSubstr("not dense"));
    }
  }
  EXPECT_EQ(test::reports(), 0U);
}

/// Elements of a buffer of another library, and where they are.
struct Strided {
  dlpack::DataType dtype{};
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> strides{};
  std::int64_t first = 0;  ///< element
};

/// Returns the bytes that the library packs from such elements of a buffer.
std::vector<std::byte> packed(Strided const& strided, void* buffer, Device device) {
  int given_back = 0;
  auto const tensor =
      from_dlpack(foreign({.data = buffer,
                           .device = {.type = device == gpu ? dlpack::device_cuda : dlpack::device_cpu, .index = 0},
                           .dtype = strided.dtype,
                           .shape = strided.shape,
                           .strides = strided.strides,
                           .byte_offset = static_cast<std::uint64_t>(strided.first) * strided.dtype.bits / 8},
                          given_back));
  auto const host = tensor.to(Device::cpu());
  return {host.data(), host.data() + host.nbytes()};
}

constexpr std::int64_t buffer_bytes = 1 << 16;

/// Any order of dimensions, steps, reversed and repeated dimensions, and elements of all sizes.
Strided random_strides(std::mt19937& random) {
  auto const below = [&](std::int64_t end) { return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random); };
  Strided one;
  auto const log_bytes = below(4);
  one.dtype = {.code = log_bytes == 0 ? dlpack::type_uint : dlpack::type_float,
               .bits = static_cast<std::uint8_t>(8 << log_bytes),
               .lanes = 1};
  auto const dims = static_cast<std::size_t>(1 + below(4));
  std::vector<std::size_t> order(dims);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  one.shape.resize(dims);
  one.strides.resize(dims);
  std::int64_t stride = 1 + below(2);
  for (auto const dim : order) {
    one.shape[dim] = 1 + below(6);
    one.strides[dim] = stride;
    stride *= one.shape[dim] + below(2);
    if (below(5) == 0) one.strides[dim] = 0;
    if (below(4) == 0) one.strides[dim] = -one.strides[dim];
    if (one.strides[dim] < 0) one.first -= one.strides[dim] * (one.shape[dim] - 1);
  }
  one.first += below(4);
  return one;
}

TEST_F(Dlpack, packs_any_strides_on_a_gpu_as_on_the_cpu) {
  auto const seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(buffer_bytes);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(random());
  auto const there = Tensor::of(bytes, {buffer_bytes}).to(gpu);
  for (int i = 0; i < 500; ++i) {
    auto const one = random_strides(random);
    ASSERT_EQ(packed(one, there.data(), gpu), packed(one, bytes.data(), Device::cpu()))
        << testing::PrintToString(one.shape) << " strides " << testing::PrintToString(one.strides) << " of "
        << int{one.dtype.bits} << " bits from " << one.first;
  }
  EXPECT_EQ(test::reports(), 0U);
}

Strided transposed() {
  return {.dtype = {.code = dlpack::type_float, .bits = 32, .lanes = 1}, .shape = {64, 64}, .strides = {1, 64}};
}

TEST_F(Dlpack, packs_a_transposed_tensor_by_one_kernel) {
  auto values = counted(64 * 64);
  auto const there = Tensor::of(values, {64 * 64}).to(gpu);
  auto const copies = test::calls("cuMemcpyDtoDAsync_v2") + test::calls("cuMemcpy2DAsync_v2");
  EXPECT_EQ(packed(transposed(), there.data(), gpu), packed(transposed(), values.data(), Device::cpu()));
  EXPECT_EQ(test::calls("cuLaunchKernel"), 1U);
  EXPECT_EQ(test::calls("cuMemcpyDtoDAsync_v2") + test::calls("cuMemcpy2DAsync_v2"), copies);
}

TEST_F(Dlpack, packs_by_copies_on_a_gpu_without_kernels) {
  ::setenv("EMULATED_GPU_CAPABILITY", "35", 1);
  auto values = counted(64 * 64);
  auto const there = Tensor::of(values, {64 * 64}).to(gpu);
  EXPECT_EQ(packed(transposed(), there.data(), gpu), packed(transposed(), values.data(), Device::cpu()));
  EXPECT_EQ(test::calls("cuLaunchKernel"), 0U);
}

TEST_F(Dlpack, takes_no_elements_with_any_strides) {
  for (auto const type : {dlpack::device_cpu, dlpack::device_cuda}) {
    for (auto const& shape : {std::vector<std::int64_t>{0, 3}, {3, 0, 2}, {3, 2, 0}}) {
      int given_back = 0;
      auto const tensor = from_dlpack(
          foreign({.device = {.type = type, .index = 0}, .shape = shape, .strides = {6, 2, 5}}, given_back));
      EXPECT_EQ(tensor.numel(), 0);
      EXPECT_EQ(tensor.device(), type == dlpack::device_cpu ? Device::cpu() : gpu);
    }
  }
}

TEST_F(Dlpack, gives_foreign_memory_back_after_the_streams_that_use_it) {
  auto const there = Tensor::of(counted(1000), {1000}).to(gpu);
  int given_back = 0;
  {
    auto const tensor = from_dlpack(foreign(
        {.data = there.data(), .device = {.type = dlpack::device_cuda, .index = 0}, .shape = {1000}}, given_back));
    EXPECT_EQ(values_of(tensor.clone()), counted(1000));
  }
  current_stream(gpu).synchronize();
  cuda::trim(gpu);  // drops what has passed
  EXPECT_EQ(given_back, 1);
}

TEST_F(Dlpack, takes_and_gives_page_locked_memory) {
  auto const pinned = Tensor::zeros({3}, Dtype::f32, MemoryOptions{.pinned = true});
  auto const out = to_dlpack(pinned);
  EXPECT_EQ(out->tensor.device.type, dlpack::device_cuda_host);
  int given_back = 0;
  auto const tensor = from_dlpack(foreign(
      {.data = pinned.data(), .device = {.type = dlpack::device_cuda_host, .index = 0}, .shape = {3}}, given_back));
  EXPECT_TRUE(tensor.is_pinned());
  EXPECT_EQ(tensor.device(), Device::cpu());
}

TEST_F(Dlpack, refuses_what_it_cannot_view_and_gives_it_back) {
  auto values = counted(4);
  int given_back = 0;
  ForeignParts const sound{.data = values.data(), .shape = {4}};
  auto const with = [&](auto change) {
    auto parts = sound;
    change(parts);
    return refused(foreign(parts, given_back));
  };
  EXPECT_THAT(with([](auto& p) { p.major = 2; }), HasSubstr("major version"));
  EXPECT_THAT(with([](auto& p) { p.device.type = 7; }), HasSubstr("kind of device"));
  EXPECT_THAT(with([](auto& p) { p.dtype.lanes = 4; }), HasSubstr("element type"));
  EXPECT_THAT(with([](auto& p) { p.dtype = {.code = 99, .bits = 32, .lanes = 1}; }), HasSubstr("element type"));
  EXPECT_THAT(with([](auto& p) { p.data = nullptr; }), HasSubstr("null"));
  EXPECT_THAT(with([](auto& p) { p.shape = std::vector<std::int64_t>(17, 1); }), HasSubstr("dimensions"));
  EXPECT_THAT(with([](auto& p) { p.shape = {-1}; }), HasSubstr("negative"));
  EXPECT_THAT(with([](auto& p) {
                p.shape = {2, 2};
                p.strides = {std::int64_t{1} << 62, std::int64_t{1} << 62};
              }),
              HasSubstr("strides"));
  EXPECT_THAT(with([](auto& p) { p.device.type = dlpack::device_cuda; }), HasSubstr("not known to CUDA"));
  EXPECT_THAT(with([](auto& p) {
                p.dtype = {.code = 17, .bits = 4, .lanes = 1};
                p.flags = dlpack::flag_padded;
              }),
              HasSubstr("padded"));
  EXPECT_EQ(given_back, 10);
  EXPECT_THAT(refused(nullptr), HasSubstr("no tensor"));
}

TEST_F(Dlpack, a_tensor_survives_the_way_out_and_back) {
  for (auto const device : {Device::cpu(), gpu}) {
    auto tensor = Tensor::of(counted(6), {2, 3}).to(device);
    auto const bytes = tensor.data();
    auto versioned = to_dlpack(tensor);
    EXPECT_EQ(versioned->version.major, 1U);
    EXPECT_EQ(versioned->flags, 0U);
    EXPECT_THAT(std::span(versioned->tensor.strides, 2), ElementsAre(3, 1));
    auto unversioned = to_dlpack_unversioned(tensor);
    tensor = {};
    auto const first = from_dlpack(std::move(versioned));
    auto const second = from_dlpack(std::move(unversioned));
    EXPECT_EQ(first.data(), bytes);
    EXPECT_EQ(second.data(), bytes);
    EXPECT_EQ(first.device(), device);
    EXPECT_EQ(values_of(second), counted(6));
  }
}

TEST_F(Dlpack, every_dtype_survives_the_way_out_and_back) {
  for (std::size_t i = 0; i < dtype_count; ++i) {
    auto const dtype = static_cast<Dtype>(i);
    auto const tensor = Tensor::zeros({8}, dtype);
    EXPECT_EQ(from_dlpack(to_dlpack(tensor)).dtype(), dtype) << name_of(dtype);
  }
}

TEST_F(Dlpack, an_export_orders_the_stream_of_the_consumer) {
  auto const producer = Stream::create(gpu);
  auto const consumer = Stream::create(gpu);
  Tensor copy;
  {
    Tensor tensor;
    dlpack::OwnedVersioned exported;
    {
      StreamGuard const guard(producer);
      tensor = Tensor::of(counted(100'000), {100'000}).to(gpu);
      exported = to_dlpack(tensor.clone(), {.stream = dlpack::stream_number(consumer)});
    }
    StreamGuard const guard(consumer);
    copy = from_dlpack(std::move(exported)).clone();
  }
  StreamGuard const guard(consumer);
  EXPECT_EQ(values_of(copy), counted(100'000)) << "the consumer did not wait for the producer";
}

TEST_F(Dlpack, refuses_streams_that_do_not_fit) {
  auto const here = Tensor::zeros({1}, Dtype::f32);
  auto const there = Tensor::zeros({1}, Dtype::f32, gpu);
  EXPECT_THROW(static_cast<void>(to_dlpack(here, {.stream = 1})), UsageError);
  EXPECT_THROW(static_cast<void>(to_dlpack(there, {.stream = 0})), UsageError);
  EXPECT_THROW(static_cast<void>(to_dlpack(there, {.stream = 2})), UsageError) << "the default stream of the thread";
  EXPECT_THROW(static_cast<void>(to_dlpack(Tensor())), UsageError);
  EXPECT_TRUE(to_dlpack(there, {.stream = -1}));
  EXPECT_TRUE(to_dlpack(here, {.stream = -1}));
  EXPECT_EQ(dlpack::stream_number(current_stream(gpu)), 1);
}

}  // namespace
}  // namespace crossrank
