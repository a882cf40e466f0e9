// Each operation that starts with weights in memory refuses wrong arguments with a typed error on all ranks, and leaves
// the output alone.
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/error.hpp>
#include <crossrank/spi/network.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/memory_packet_transport.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank::refused_exports_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::Placements;
using testing::HasSubstr;

/// Expects an error of this type, with this text, on both ranks.
template <class Expected>
void expect_on_both_ranks(std::string const& text, test::ThreadBody const& call) {
  for (auto const& error : test::try_thread_ranks(2, call)) {
    ASSERT_NE(error, nullptr) << text;
    EXPECT_THROW(std::rethrow_exception(error), Expected) << test::text_of(error);
    EXPECT_THAT(test::text_of(error), HasSubstr(text));
  }
}

/// The weights and placements of one rank.
struct Part {
  StateDict weights{{"w", Tensor::zeros({4}, Dtype::f32)}};
  Placements placements{};
};

class RefusedExport : public testing::Test {
 protected:
  [[nodiscard]] fs::path out() const { return folder_.path() / "out"; }

  /// Calls every operation and expects the error from each. The parts are those of ranks 0 and 1.
  template <class Expected>
  void expect_refused(std::string const& text, Part const& first, Part const& second) const {
    std::vector<std::function<void(Collective const&, Part const&)>> const operations{
        [&](auto const& world, auto const& part) {
          (void)checkpoint::consolidate(world, part.weights, part.placements, out());
        },
        [&](auto const& world, auto const& part) {
          checkpoint::iconsolidate(world, part.weights, part.placements, out()).wait();
        },
        [](auto const& world, auto const& part) {
          (void)checkpoint::get_full_state_dict(world, part.weights, part.placements);
        },
        [](auto const& world, auto const& part) {
          (void)checkpoint::reshard(world, part.weights, part.placements, {});
        }};
    for (auto const& operation : operations) {
      expect_on_both_ranks<Expected>(
          text, [&](Collective const& world) { operation(world, world.rank() == 0 ? first : second); });
    }
    EXPECT_FALSE(fs::exists(out()));
  }

  test::TemporaryDirectory folder_{};
};

/// Addresses without memory. Every access crashes.
class Addresses final : public spi::Storage {
 public:
  Addresses(std::size_t bytes, Device device)
      : bytes_(bytes),
        device_(device),
        at_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Addresses() override { ::munmap(at_, bytes_); }
  Addresses(Addresses const&) = delete;
  Addresses& operator=(Addresses const&) = delete;
  [[nodiscard]] std::byte* data() noexcept override { return static_cast<std::byte*>(at_); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Device device() const noexcept override { return device_; }

 private:
  std::size_t bytes_;
  Device device_;
  void* at_;
};

Tensor without_memory(std::int64_t bytes, Device device = {}) {
  return spi::tensor_from_storage(std::make_shared<Addresses>(as_size(bytes), device), 0, {bytes}, Dtype::u8);
}

/// More than any host has.
#ifdef __SANITIZE_THREAD__
constexpr std::int64_t too_many_bytes = std::int64_t{1} << 39;  // the sanitizer leaves 1.5 TiB of addresses
#else
constexpr std::int64_t too_many_bytes = std::int64_t{1} << 42;
#endif

// The tensor would lose the rows of rank 1, and nobody would notice.
TEST_F(RefusedExport, of_a_sharded_tensor_beside_a_rank_without_tensors) {
  for (checkpoint::Placement const& placement :
       {checkpoint::Placement(checkpoint::Shard{0}), checkpoint::Placement(checkpoint::StridedShard{0, 2}),
        checkpoint::Placement(checkpoint::Partial{})}) {
    Part const whole{.placements = {.otherwise = {.placements = {placement}}}};
    Part const idle{.weights = {}, .placements = whole.placements};
    expect_refused<FormatError>("rank 1 has no tensors", whole, idle);
  }
}

/// Rank 0 alone warns of names. The rules correct the config, which cannot be read as it is.
TEST_F(RefusedExport, is_none_where_rules_correct_the_config) {
  auto const rules = folder_.path() / "rules.json";
  std::ofstream(rules) << R"({"sizes": {"hidden_size": 8}})";
  test::run_thread_ranks(2, [&](Collective const& world) {
    checkpoint::ExportOptions const options{
        .model = {.config = {{"model_type", "llama"}, {"hidden_size", "8"}}, .rules = rules}};
    (void)checkpoint::consolidate(world, {{"model.norm.weight", Tensor::zeros({8}, Dtype::f32)}}, {}, out(), options);
  });
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

TEST_F(RefusedExport, of_an_undefined_tensor) {
  expect_refused<UsageError>("tensor is undefined", {}, {.weights = {{"w", Tensor()}}});
}

TEST_F(RefusedExport, of_a_tensor_on_a_GPU_without_a_driver) {
  ::setenv("CROSSRANK_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  expect_refused<UnavailableError>("/nowhere/libcuda.so.1", {},
                                   {.weights = {{"w", without_memory(4096, {Device::Kind::cuda, 1})}}});
}

TEST_F(RefusedExport, of_a_place_outside_the_grid) {
  expect_refused<UsageError>("`tp_rank` of the placements is outside the grid: expected 0 to 1, got 2",
                             {.placements = {.tp = 2}}, {.placements = {.tp_rank = 2, .tp = 2}});
  expect_refused<UsageError>("`pp_rank` of the placements is outside the grid: expected 0 to 1, got -1",
                             {.placements = {.pp = 2}}, {.placements = {.pp_rank = -1, .pp = 2}});
  expect_refused<UsageError>("`ep_rank` of the placements is outside the grid: expected 0 to 0, got 1", {},
                             {.placements = {.ep_rank = 1}});
}

TEST_F(RefusedExport, of_ranks_with_different_grids) {
  auto const text = "ranks 0 and 1 give different sizes of the grid: expected 2, got 4";
  expect_refused<MismatchError>(text, {.placements = {.tp = 2}}, {.placements = {.tp_rank = 1, .tp = 4}});
  expect_refused<MismatchError>(text, {.placements = {.pp = 2}}, {.placements = {.pp_rank = 1, .pp = 4}});
  expect_refused<MismatchError>(text, {.placements = {.ep = 2}}, {.placements = {.ep_rank = 1, .ep = 4}});
  expect_refused<MismatchError>(text, {.placements = {.tp = 4, .moe_ep = 2}},
                                {.placements = {.tp_rank = 1, .tp = 4, .moe_ep = 4}});
}

TEST_F(RefusedExport, of_a_grid_with_a_place_that_no_rank_has) {
  Part const stage{.placements = {.pp_rank = 1, .pp = 2}};
  expect_refused<FormatError>("no rank has weights of tensor-parallel rank 0, stage 0", stage, stage);
  // A rank without tensors does not count.
  expect_refused<FormatError>("no rank has weights of tensor-parallel rank 0, stage 0",
                              {.weights = {}, .placements = {.pp = 2}}, stage);
}

TEST_F(RefusedExport, of_wrong_numbers_of_first_elements) {
  auto const text = "a flattened tensor needs `first_element` of at least 0, a `shape` and no placements";
  auto const flat = [](checkpoint::TensorPlacement placement) {
    return Part{.placements = {.otherwise = std::move(placement)}};
  };
  expect_refused<UsageError>(text, flat({.shape = Shape{8}, .first_element = 0}),
                             flat({.shape = Shape{8}, .first_element = -4}));
  expect_refused<UsageError>(text, flat({.shape = Shape{8}, .first_element = 0}),
                             flat({.placements = {checkpoint::Shard{0}}, .shape = Shape{8}, .first_element = 4}));
}

TEST_F(RefusedExport, without_the_rule_file_or_the_directory_of_the_model) {
  for (checkpoint::ModelDescription const& model :
       {checkpoint::ModelDescription{.rules = folder_.path() / "missing"},
        checkpoint::ModelDescription{.directory = folder_.path() / "missing"}}) {
    expect_on_both_ranks<IoError>("missing", [&](Collective const& world) {
      (void)checkpoint::consolidate(world, Part().weights, {}, out(), {.model = model});
    });
    expect_on_both_ranks<IoError>("missing", [&](Collective const& world) {
      (void)checkpoint::get_full_state_dict(world, Part().weights, {}, {.model = model});
    });
  }
  EXPECT_FALSE(fs::exists(out()));
}

TEST_F(RefusedExport, to_the_directory_of_the_model) {
  fs::create_directories(folder_.path() / "model");
  std::ofstream(folder_.path() / "model" / "config.json") << "{}";
  std::ofstream(folder_.path() / "model" / "model.safetensors") << "weights";
  fs::create_directory_symlink("model", folder_.path() / "link");
  for (auto const* const name : {"model", "link"}) {
    expect_on_both_ranks<UsageError>("the output directory contains", [&](Collective const& world) {
      (void)checkpoint::consolidate(world, Part().weights, {}, folder_.path() / name,
                                    {.model = {.directory = folder_.path() / "model"}, .force = true});
    });
  }
  std::ifstream weights(folder_.path() / "model" / "model.safetensors");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(weights), {}), "weights");
}

TEST_F(RefusedExport, to_a_receiver_without_memory) {
  auto const weights_of = [](Collective const&) { return StateDict{{"w", without_memory(too_many_bytes)}}; };
  Placements const sharded{.otherwise = {.placements = {checkpoint::Shard{0}}}};
  auto const text = "lacks memory for the tensors";
  expect_on_both_ranks<UnavailableError>(text, [&](Collective const& world) {
    (void)checkpoint::get_full_state_dict(world, weights_of(world), sharded, {.dst = 1});
  });
  expect_on_both_ranks<UnavailableError>(
      text, [&](Collective const& world) { (void)checkpoint::reshard(world, weights_of(world), sharded, {}); });
}

TEST_F(RefusedExport, in_the_background_when_one_rank_has_more_than_its_limit) {
  auto const text = "the copy of this rank's weights would exceed the limit";
  expect_on_both_ranks<UnavailableError>(text, [&](Collective const& world) {
    auto const bytes = world.rank() == 1 ? 1000 : 100;
    (void)checkpoint::iconsolidate(world, {{"w", Tensor::zeros({bytes}, Dtype::u8)}},
                                   {.otherwise = {.placements = {checkpoint::Shard{0}}}}, out(),
                                   {.max_copy_bytes = 500});
  });
  // By default the limit comes from the free memory.
  expect_on_both_ranks<UnavailableError>(text, [&](Collective const& world) {
    auto const tensor = world.rank() == 1 ? without_memory(too_many_bytes) : Tensor::zeros({100}, Dtype::u8);
    (void)checkpoint::iconsolidate(world, {{"w", tensor}}, {.otherwise = {.placements = {checkpoint::Shard{0}}}},
                                   out());
  });
  EXPECT_FALSE(fs::exists(out()));
}

/// Packets for calls of one thread, as those of an MPI without MPI_THREAD_MULTIPLE.
class PacketsForOneThread final : public spi::PacketTransport {
 public:
  PacketsForOneThread(std::shared_ptr<test::MemoryHub> hub, int rank) : below_(std::move(hub), rank) {}
  [[nodiscard]] std::string_view backend() const noexcept override { return "one_thread"; }
  [[nodiscard]] int rank() const noexcept override { return below_.rank(); }
  [[nodiscard]] int world_size() const noexcept override { return below_.world_size(); }
  [[nodiscard]] bool may_use_threads() const noexcept override { return false; }
  void send(int dst, std::vector<std::byte> packet) override { below_.send(dst, std::move(packet)); }
  [[nodiscard]] std::size_t unsent(int dst) const noexcept override { return below_.unsent(dst); }
  [[nodiscard]] std::optional<spi::ReceivedPacket> receive() override { return below_.receive(); }

 private:
  test::MemoryPacketTransport below_;
};

TEST_F(RefusedExport, in_the_background_over_a_backend_for_one_thread) {
  auto const hub = std::make_shared<test::MemoryHub>(2);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      spi::TimeoutPolicy const policy{.timeout = test::step_timeout};
      auto const network = spi::make_network(std::make_unique<PacketsForOneThread>(hub, rank));
      auto const host = "host" + std::to_string(rank);
      auto const world = make_collective(
          network->open_world({.job = "test", .timeout_policy = policy, .host_id = host, .host_name = host}), policy);
      try {
        (void)checkpoint::iconsolidate(world, Part().weights, {}, out());
        ADD_FAILURE() << "a second thread used the backend";
      } catch (UnavailableError const& error) {
        EXPECT_THAT(error.info().hint, HasSubstr("MPI_THREAD_MULTIPLE"));
        EXPECT_EQ(error.info().operation, "iconsolidate");
      }
      (void)checkpoint::consolidate(world, Part().weights, {}, out());
    });
  }
  for (auto const& error : test::run_threads(ranks)) EXPECT_EQ(test::text_of(error), "");
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

}  // namespace
}  // namespace crossrank::refused_exports_test
