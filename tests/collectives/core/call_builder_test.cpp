#include "collectives/core/call_builder.hpp"

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/error.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "tests/support/error_of.hpp"

/// Plans calls with sizes of tensors that no machine could hold: planning does not touch the elements.
namespace crossrank::test {
namespace {

/// Transport of rank 1 of 4 that sends nothing.
class OneOfFour final : public spi::Transport {
 public:
  std::string_view backend() const noexcept override { return "none"; }
  std::string const& name() const noexcept override { return name_; }
  int rank() const noexcept override { return 1; }
  int world_size() const noexcept override { return 4; }
  std::span<int const> global_ranks() const noexcept override { return {}; }
  std::span<int const> node_ranks() const noexcept override { return {}; }
  spi::RequestId post_barrier(spi::Signature) override { return {}; }
  spi::RequestId post_broadcast(spi::Signature, spi::Sink, int) override { return {}; }
  spi::RequestId post_all_gatherv(spi::Signature, spi::Source, std::span<std::size_t const>, spi::Sink) override {
    return {};
  }
  spi::RequestId post_send(spi::Source, int, std::uint32_t) override { return {}; }
  spi::RequestId post_recv(spi::Sink, int, std::uint32_t) override { return {}; }
  spi::RequestId post_recv_any(spi::Sink, std::uint32_t, std::shared_ptr<int>) override { return {}; }
  bool test(spi::RequestId) override { return true; }
  void wait(spi::RequestId, spi::TimeoutPolicy const&) override {}
  void cancel(spi::RequestId, std::string_view) noexcept override {}
  std::shared_ptr<Transport> split(spi::Signature, std::span<int const>, std::string,
                                   spi::TimeoutPolicy const&) override {
    return nullptr;
  }
  void abort(std::string_view) noexcept override {}
  void close(spi::TimeoutPolicy const&) override {}
  bool is_closed() const noexcept override { return false; }

 private:
  std::string name_ = "four";
};

constexpr std::int64_t billion = 1'000'000'000;

/// Returns a tensor over memory that does not exist.
Tensor imagined(Shape const& shape, Dtype dtype) {
  static std::byte first{};
  return Tensor::from_blob(&first, shape, dtype);
}

TEST(CallBuilder, counts_bytes_beyond_32_bits) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto const in = imagined({5 * billion, 2}, Dtype::f64);
  Tensor none;
  EXPECT_EQ(call_builder.gather(none, in, {0}).counts, std::vector<std::size_t>(4, std::size_t{80} * billion));
  std::vector<std::int64_t> const rows{3 * billion, 5 * billion, 0, billion};
  EXPECT_EQ(call_builder.gatherv(none, in, {.rows = rows}).counts,
            (std::vector<std::size_t>{48ULL * billion, 80ULL * billion, 0, 16ULL * billion}));
  auto tensor = imagined({std::int64_t{1} << 33}, Dtype::bf16);
  EXPECT_EQ(call_builder.all_reduce(tensor, ReduceOp::sum, ReduceOrder::any).in.bytes.size(), std::size_t{1} << 34);
}

TEST(CallBuilder, refuses_sizes_that_overflow) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto const in = imagined({1, 8}, Dtype::f64);
  Tensor none;
  for (std::int64_t const rows : {std::int64_t{1} << 61, std::int64_t{1} << 57}) {
    std::vector<std::int64_t> const all{rows, 1, rows, rows};
    EXPECT_THROW(static_cast<void>(call_builder.gatherv(none, in, {.rows = all})), UsageError) << rows;
  }
}

TEST(CallBuilder, gives_different_calls_different_signatures) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto a = Tensor::zeros({4, 6}, Dtype::f32);
  auto b = Tensor::zeros({6, 4}, Dtype::f32);
  auto c = Tensor::zeros({4, 6}, Dtype::i32);
  auto const of = [&](Tensor& tensor, int root) { return call_builder.broadcast(tensor, {root}).signature.digest; };
  EXPECT_NE(of(a, 0), of(b, 0));
  EXPECT_NE(of(a, 0), of(c, 0));
  EXPECT_NE(of(a, 0), of(a, 1));
  EXPECT_EQ(of(a, 2), of(a, 2));
  EXPECT_NE(call_builder.reduce(a, ReduceOp::sum, {0}, ReduceOrder::any).signature.digest,
            call_builder.reduce(a, ReduceOp::max, {0}, ReduceOrder::any).signature.digest);
}

/// Another rank reads the bytes.
class ReadStorage final : public spi::Storage {
 public:
  [[nodiscard]] std::byte* data() noexcept override { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return sizeof bytes_; }
  [[nodiscard]] std::string frozen_by() const override { return "rank 2 reads it"; }

 private:
  alignas(4) std::byte bytes_[16] = {};
};

/// The checks of tensors and numbers name the call, the group and the rank, as all other checks do.
TEST(CallBuilder, names_group_and_rank_in_every_refusal) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto flags = Tensor::zeros({4}, Dtype::boolean);
  auto frozen = spi::tensor_from_storage(std::make_shared<ReadStorage>(), 0, {4}, Dtype::f32);
  std::vector<Tensor> frozen_list{frozen};
  auto const in = imagined({1, 8}, Dtype::f64);
  Tensor none;
  std::vector<std::int64_t> const rows(4, std::int64_t{1} << 57);
  std::vector<std::pair<std::string, std::function<void()>>> const calls{
      {"all_reduce", [&] { static_cast<void>(call_builder.all_reduce(flags, ReduceOp::sum, ReduceOrder::any)); }},
      {"all_reduce", [&] { static_cast<void>(call_builder.all_reduce(frozen, ReduceOp::sum, ReduceOrder::any)); }},
      {"all_reduce",
       [&] { static_cast<void>(call_builder.all_reduce(std::span(frozen_list), ReduceOp::sum, ReduceOrder::any)); }},
      {"recv", [&] { static_cast<void>(call_builder.recv(frozen, 0, {})); }},
      {"gatherv", [&] { static_cast<void>(call_builder.gatherv(none, in, {.rows = rows})); }}};
  for (auto const& [operation, call] : calls) {
    auto const info = error_of<UsageError>(call);
    EXPECT_EQ(info.operation, operation);
    EXPECT_EQ(info.group, "four") << operation;
    EXPECT_EQ(info.rank, 1) << operation;
    EXPECT_EQ(info.world_size, 4) << operation;
  }
}

/// The input may be its own part of the result. Anywhere else in the result it would be overwritten before it is read.
TEST(CallBuilder, accepts_an_input_only_at_its_own_place_in_the_result) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto whole = Tensor::zeros({4, 8}, Dtype::i32);
  std::vector<std::int64_t> const ones(4, 1);
  for (std::int64_t part = 0; part < 4; ++part) {
    auto mine = whole.narrow(0, part, 1);
    auto const calls = std::vector<std::function<void()>>{
        [&] { static_cast<void>(call_builder.all_gather(whole, mine)); },
        [&] { static_cast<void>(call_builder.all_gatherv(whole, mine, {.rows = ones})); },
        [&] { static_cast<void>(call_builder.gather(whole, mine, {1})); },
        [&] { static_cast<void>(call_builder.gatherv(whole, mine, {.rows = ones, .root = 1})); },
        [&] { static_cast<void>(call_builder.scatter(mine, whole, {1})); },
        [&] { static_cast<void>(call_builder.scatterv(mine, whole, {.rows = ones, .root = 1})); }};
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (part == transport.rank()) {
        EXPECT_NO_THROW(calls[i]()) << i;
      } else {
        EXPECT_THROW(calls[i](), UsageError) << i << " with part " << part;
      }
    }
  }
}

TEST(CallBuilder, finds_no_overlap_between_empty_tensors) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  auto whole = Tensor::zeros({8}, Dtype::i32);
  auto none = whole.narrow(0, 3, 0);
  std::vector<std::int64_t> const rows{4, 0, 2, 2};
  EXPECT_NO_THROW(
      static_cast<void>(call_builder.reduce_scatterv(none, whole, {.rows = rows}, ReduceOp::sum, ReduceOrder::any)));
  EXPECT_NO_THROW(static_cast<void>(call_builder.all_gatherv(whole, none, {.rows = rows})));
}

/// Returns consecutive bytes, so that each shows where it comes from.
std::vector<std::uint8_t> bytes_from(std::uint8_t first, std::size_t count) {
  std::vector<std::uint8_t> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

std::vector<std::uint8_t> bytes_of(std::span<std::byte const> bytes) {
  std::vector<std::uint8_t> all;
  for (auto const one : bytes) all.push_back(std::to_integer<std::uint8_t>(one));
  return all;
}

TEST(CallBuilder, gathers_lists_of_tensors_with_different_rows_rank_by_rank) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  std::vector<std::int64_t> const rows{1, 2, 0, 1};
  std::vector<Tensor> const ins{Tensor::of(bytes_from(100, 4), {2, 2}), Tensor::of(bytes_from(200, 6), {2, 3})};
  std::vector<Tensor> outs{Tensor::zeros({4, 2}, Dtype::u8), Tensor::zeros({4, 3}, Dtype::u8)};
  auto const call = call_builder.all_gatherv(outs, ins, {.rows = rows}, "dispatch");
  EXPECT_STREQ(call.name(), "dispatch");
  EXPECT_EQ(call.counts, (std::vector<std::size_t>{5, 10, 0, 5}));
  call.pack();
  EXPECT_EQ(bytes_of(call.in.bytes), (std::vector<std::uint8_t>{100, 101, 102, 103, 200, 201, 202, 203, 204, 205}));
  ASSERT_EQ(call.out.bytes.size(), 20U);
  for (std::size_t i = 0; i < call.out.bytes.size(); ++i) call.out.bytes[i] = static_cast<std::byte>(i);
  call.unpack();
  EXPECT_EQ(bytes_of(outs[0].bytes()), (std::vector<std::uint8_t>{0, 1, 5, 6, 7, 8, 15, 16}));
  EXPECT_EQ(bytes_of(outs[1].bytes()), (std::vector<std::uint8_t>{2, 3, 4, 9, 10, 11, 12, 13, 14, 17, 18, 19}));
}

TEST(CallBuilder, refuses_lists_of_tensors_whose_rows_do_not_fit) {
  OneOfFour const transport;
  CallBuilder const call_builder(transport, CheckLevel::local);
  std::vector<std::int64_t> const rows{1, 2, 0, 1};
  auto const tensors = [](std::int64_t first, std::int64_t second, Dtype dtype = Dtype::u8) {
    return std::vector<Tensor>{Tensor::zeros({first, 2}, Dtype::u8), Tensor::zeros({second, 3}, dtype)};
  };
  auto const call = [&](std::vector<Tensor> outs, std::vector<Tensor> const& ins) {
    static_cast<void>(call_builder.all_gatherv(outs, ins, {.rows = rows}, "all_gatherv"));
  };
  EXPECT_NO_THROW(call(tensors(4, 4), tensors(2, 2)));
  EXPECT_THROW(call(tensors(4, 4), tensors(2, 1)), UsageError);
  EXPECT_THROW(call(tensors(4, 3), tensors(2, 2)), UsageError);
  EXPECT_THROW(call(tensors(4, 4, Dtype::i8), tensors(2, 2)), UsageError);
  EXPECT_THROW(call({}, tensors(2, 2)), UsageError);
  EXPECT_THROW(call({}, {}), UsageError);
}

TEST(CallBuilder, records_arguments_unless_checks_are_off) {
  OneOfFour const transport;
  auto a = Tensor::zeros({4, 6}, Dtype::f32);
  auto const off = CallBuilder(transport, CheckLevel::off).reduce(a, ReduceOp::sum, {0}, ReduceOrder::any);
  EXPECT_EQ(off.signature.digest, 0U);
  EXPECT_TRUE(off.arguments.empty());
  for (auto const check : {CheckLevel::local, CheckLevel::collective}) {
    auto const call = CallBuilder(transport, check).reduce(a, ReduceOp::sum, {2}, ReduceOrder::any);
    EXPECT_EQ(describe_call(call.name(), call.noted().arguments), "reduce root 2 F32 sum [4, 6]");
  }
}

}  // namespace
}  // namespace crossrank::test
