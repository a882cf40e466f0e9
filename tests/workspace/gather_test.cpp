#include <chrono>
#include <exception>
#include <fstream>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <crossrank/crossrank.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/error_of.hpp"
#include "tests/support/expect_same_tensor.hpp"
#include "tests/support/message_ranks.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/thread_ranks.hpp"

/// Both gathers through both exchanges, with threads as ranks: content, order, and errors.
namespace crossrank {
namespace {

using test::expect_same_tensor;
using test::run_thread_ranks;

enum class Through { memory, files, named_files, named_memory };

std::string name_of(testing::TestParamInfo<std::tuple<int, Through>> const& info) {
  static constexpr char const* exchanges[] = {"memory", "files", "named_files", "named_memory"};
  return std::string(exchanges[as_index(std::get<1>(info.param))]) + "_" + std::to_string(std::get<0>(info.param)) +
         "_ranks";
}

/// Returns the tensor that a rank contributes. Its shape and content identify the rank.
Tensor tensor_of(int rank, std::int64_t rows) {
  std::vector<float> values(as_size(rows * 3));
  std::iota(values.begin(), values.end(), static_cast<float>(rank * 1000));
  return Tensor::of<float>(values, {rows, 3});
}

/// Compares types too, because == treats signed and unsigned integers as equal.
void expect_same_types(Json const& got, Json const& wanted) {
  EXPECT_EQ(got.type(), wanted.type()) << wanted;
  if (!wanted.is_structured()) return;
  for (auto g = got.begin(), w = wanted.begin(); w != wanted.end(); ++g, ++w) expect_same_types(*g, *w);
}

class Gather : public testing::TestWithParam<std::tuple<int, Through>> {
 protected:
  [[nodiscard]] static int ranks() { return std::get<0>(GetParam()); }

  /// Returns the options for the exchange of this case. Persistent workspaces are created once per rank.
  [[nodiscard]] GatherOptions options(Collective const& world) const {
    switch (std::get<1>(GetParam())) {
      case Through::memory: return {};
      case Through::files: return {.workspace_path = directory_.path() / "call"};
      case Through::named_files:
        return {.workspace =
                    NFSWorkspace(directory_.path() / "named", {.rank = world.rank(), .existing = Existing::keep})};
      case Through::named_memory:
        return world.world_size() == 1 ? GatherOptions{} : GatherOptions{.workspace = SharedMemoryWorkspace(world)};
    }
    return {};
  }

  test::TemporaryDirectory directory_;
};

TEST_P(Gather, refuses_a_timeout_that_is_not_positive_and_stays_usable) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto through = options(world);
    for (auto const timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds(-100'000)}) {
      through.timeout = timeout;
      auto const info =
          test::error_of<UsageError>([&] { get_tensors_parallel(tensor_of(world.rank(), 1), world, through).close(); });
      EXPECT_EQ(info.got, std::to_string(timeout.count()) + " ms");
      EXPECT_EQ(info.rank, world.rank());
      EXPECT_TRUE(info.group_usable);
    }
    world.barrier();
  });
}

TEST_P(Gather, delivers_tensors_in_rank_order_with_their_own_shapes) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const through = options(world);
    for (int round = 0; round < 5; ++round) {
      auto range = get_tensors_parallel(tensor_of(world.rank(), world.rank() + round), world, through);
      EXPECT_EQ(range.is_receiver(), world.rank() == 0);
      EXPECT_EQ(range.size(), world.rank() == 0 ? as_size(world.world_size()) : 0U);
      int rank = 0;
      for (auto const& tensor : range) {
        expect_same_tensor(tensor, tensor_of(rank, rank + round));
        ++rank;
      }
      range.close();
      range.close();
    }
  });
}

TEST_P(Gather, delivers_to_the_first_listed_rank_in_the_order_of_the_list) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const through = options(world);
    auto const all = get_tensors_parallel(tensor_of(world.rank(), 2), {2, 0}, world, through).take();
    ASSERT_EQ(all.size(), world.rank() == 2 ? 2U : 0U);
    if (all.empty()) return;
    expect_same_tensor(all[0], tensor_of(2, 2));
    expect_same_tensor(all[1], tensor_of(0, 2));
  });
}

TEST_P(Gather, keeps_the_place_of_an_undefined_tensor) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const through = options(world);
    auto const mine = world.rank() % 2 == 1 ? Tensor() : tensor_of(world.rank(), 1);
    auto const all = get_tensors_parallel(mine, world, through).take();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      expect_same_tensor(all[rank], rank % 2 == 1 ? Tensor() : tensor_of(static_cast<int>(rank), 1));
    }
  });
}

TEST_P(Gather, preserves_every_dtype_and_empty_and_scalar_tensors) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const make = [](int rank) {
      StateDict dict;
      dict.insert_or_assign("scalar", Tensor::scalar<double>(rank + 0.5));
      dict.insert_or_assign("empty", Tensor::empty({0, 7}, Dtype::bf16));
      dict.insert_or_assign("absent", Tensor());
      for (auto const dtype :
           {Dtype::boolean, Dtype::f4, Dtype::f8_e4m3, Dtype::u16, Dtype::f16, Dtype::c64, Dtype::i64}) {
        auto tensor = Tensor::zeros({4, 2}, dtype);
        tensor.mutable_bytes().back() = static_cast<std::byte>(rank + 1);
        dict.insert_or_assign(std::string("of ") + std::string(name_of(dtype)), tensor);
      }
      return dict;
    };
    auto const through = options(world);
    auto const all = get_tensors_parallel(make(world.rank()), world, through).take();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      auto const wanted = make(static_cast<int>(rank));
      ASSERT_EQ(all[rank].size(), wanted.size());
      auto got = all[rank].begin();
      for (auto const& [name, tensor] : wanted) {
        EXPECT_EQ(got->first, name);
        expect_same_tensor(got->second, tensor);
        ++got;
      }
    }
  });
}

TEST_P(Gather, makes_received_tensors_read_only_but_not_the_own_one) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto all = get_tensors_parallel(tensor_of(world.rank(), 2), world, options(world)).take();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i == 0) {
        EXPECT_NO_THROW(static_cast<void>(all[i].mutable_bytes()));
      } else {
        EXPECT_THROW(static_cast<void>(all[i].mutable_bytes()), UsageError);
      }
      EXPECT_NO_THROW(static_cast<void>(all[i].clone().mutable_bytes()));
    }
    world.barrier();
  });
}

TEST_P(Gather, preserves_every_value_of_configs) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const make = [](int rank) {
      RankState state;
      if (rank == 1) return state;  // a null config without tensors
      state.config["z"] = rank;
      state.config["layers"] = 32;
      state.config["sizes"] = {std::size_t{7}, 8, -9, 10U};
      state.config["big"] = std::uint64_t{18'446'744'073'709'551'615U};
      state.config["a"] = -std::numeric_limits<double>::infinity();
      state.config["text"] = "snow \u2603";
      state.config["bytes"] = Json::binary({1, 2, 255});
      state.config["null"] = nullptr;
      state.weights.insert_or_assign("w.weight", tensor_of(rank, 2));
      return state;
    };
    auto const through = options(world);
    auto const all = get_configs_parallel(make(world.rank()), world, through).take();
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto const wanted = make(static_cast<int>(i));
      EXPECT_EQ(all[i].rank, static_cast<int>(i));
      EXPECT_EQ(all[i].state.config, wanted.config);
      EXPECT_EQ(all[i].state.config.dump(), wanted.config.dump()) << "order of keys";
      expect_same_types(all[i].state.config, wanted.config);
      ASSERT_EQ(all[i].state.weights.size(), wanted.weights.size());
      for (auto const& [name, tensor] : wanted.weights) expect_same_tensor(all[i].state.weights.at(name), tensor);
    }
  });
}

TEST_P(Gather, moves_ten_thousand_tensors_in_one_round) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    RankState mine;
    for (int i = 0; i < 10'000; ++i)
      mine.weights.insert_or_assign("layer." + std::to_string(i), Tensor::scalar<std::int32_t>(i * 10 + world.rank()));
    auto const through = options(world);
    auto const all = get_configs_parallel(mine, world, through).take();
    for (auto const& [rank, state] : all) {
      ASSERT_EQ(state.weights.size(), 10'000U);
      int i = 0;
      for (auto const& [name, tensor] : state.weights) EXPECT_EQ(tensor.item<std::int32_t>(), 10 * i++ + rank) << name;
    }
  });
}

TEST_P(Gather, refuses_an_invalid_list_of_ranks_before_sending) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const through = options(world);
    auto const tensor = tensor_of(0, 1);
    std::vector<int> const none;
    EXPECT_THROW(auto r = get_tensors_parallel(tensor, none, world, through), UsageError);
    EXPECT_THROW(auto r = get_tensors_parallel(tensor, {0, 0}, world, through), UsageError);
    EXPECT_THROW(auto r = get_tensors_parallel(tensor, {-1}, world, through), UsageError);
    EXPECT_THROW(auto r = get_tensors_parallel(tensor, {0, 99}, world, through), UsageError);
    EXPECT_EQ(get_tensors_parallel(tensor, world, through).take().size(),
              world.rank() == 0 ? as_size(world.world_size()) : 0U);
  });
}

TEST_P(Gather, allows_nested_ranges) {
  run_thread_ranks(ranks(), [this](Collective const& world) {
    auto const through = options(world);
    auto outer = get_tensors_parallel(tensor_of(world.rank(), 1), world, through);
    auto inner = get_tensors_parallel(tensor_of(world.rank(), 4), world, through);
    for (std::size_t i = 0; i < inner.size(); ++i) expect_same_tensor(inner[i], tensor_of(static_cast<int>(i), 4));
    inner.close();
    for (std::size_t i = 0; i < outer.size(); ++i) expect_same_tensor(outer[i], tensor_of(static_cast<int>(i), 1));
    outer.close();
  });
}

TEST_P(Gather, sends_the_text_of_an_exception_in_consume_to_every_rank) {
  if (ranks() < 2) GTEST_SKIP() << "needs a peer";
  auto const errors = test::try_thread_ranks(ranks(), [this](Collective const& world) {
    auto range = get_tensors_parallel(tensor_of(world.rank(), 1), world, options(world));
    range.consume([&](auto& items) {
      if (items.is_receiver()) throw std::runtime_error("the disk is on fire");
    });
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_THAT(test::text_of(errors[rank]), testing::HasSubstr("the disk is on fire"));
    if (rank == 0) continue;
    try {
      ASSERT_TRUE(errors[rank]);
      std::rethrow_exception(errors[rank]);
    } catch (PeerLostError const& e) {
      EXPECT_THAT(std::vector<int>(e.failed_ranks().begin(), e.failed_ranks().end()), testing::ElementsAre(0));
    }
  }
}

/// The range reports its own errors, even when the exception leaves the loop without their text.
TEST_P(Gather, sends_the_text_of_a_failed_item_to_every_rank) {
  if (ranks() < 2) GTEST_SKIP() << "needs a peer";
  auto const errors = test::try_thread_ranks(ranks(), [this](Collective const& world) {
    auto range = get_tensors_parallel(tensor_of(world.rank(), 1), world, options(world));
    if (range.is_receiver()) static_cast<void>(range[range.size()]);
    range.close();
  });
  for (auto const& error : errors) EXPECT_THAT(test::text_of(error), testing::HasSubstr("the item does not exist"));
}

TEST_P(Gather, of_a_rank_that_cannot_provide_its_item_fails_on_all_ranks_and_keeps_the_group) {
  for (int bad = 0; bad < ranks(); ++bad) {
    run_thread_ranks(ranks(), [&](Collective const& world) {
      auto chosen = options(world);
      if (world.rank() == bad) chosen.failure = std::make_exception_ptr(std::logic_error("no weights yet"));
      auto const gather = [&] { static_cast<void>(get_tensors_parallel(tensor_of(world.rank(), 2), world, chosen)); };
      if (world.rank() == bad) {
        EXPECT_THROW(gather(), std::logic_error);
      } else {
        auto const info = test::error_of<RemoteError>(gather);
        EXPECT_THAT(info.message, testing::HasSubstr("no weights yet"));
        EXPECT_TRUE(info.group_usable);
      }
      EXPECT_EQ(get_tensors_parallel(tensor_of(world.rank(), 2), world, options(world)).take().size(),
                world.rank() == 0 ? as_size(ranks()) : 0U);
    });
  }
}

/// The error of another group, which has failed, is reported like any other.
TEST_P(Gather, reports_a_failure_of_another_group) {
  if (ranks() < 2) GTEST_SKIP() << "needs a peer";
  run_thread_ranks(ranks(), [&](Collective const& world) {
    auto chosen = options(world);
    ErrorInfo const elsewhere{.operation = "all_reduce", .message = "the ranks disagree", .group_usable = false};
    if (world.rank() == 1) chosen.failure = std::make_exception_ptr(MismatchError(elsewhere));
    auto const gather = [&] { static_cast<void>(get_tensors_parallel(tensor_of(world.rank(), 2), world, chosen)); };
    if (world.rank() == 1) {
      EXPECT_THROW(gather(), MismatchError);
    } else {
      auto const info = test::error_of<RemoteError>(gather);
      EXPECT_THAT(info.message, testing::HasSubstr("the ranks disagree"));
    }
    EXPECT_EQ(get_tensors_parallel(tensor_of(world.rank(), 2), world, options(world)).take().size(),
              world.rank() == 0 ? as_size(ranks()) : 0U);
  });
}

TEST_P(Gather, refuses_a_config_that_is_not_utf8_on_whichever_rank_it_is) {
  for (int bad = 0; bad < ranks(); ++bad) {
    run_thread_ranks(ranks(), [&](Collective const& world) {
      RankState const mine{.config = world.rank() == bad ? "\xff" : "fine"};
      auto const gather = [&] { static_cast<void>(get_configs_parallel(mine, world, options(world)).take()); };
      if (world.rank() == bad) {
        EXPECT_THROW(gather(), UsageError);
      } else {
        EXPECT_THROW(gather(), RemoteError);
      }
      world.barrier();
    });
  }
}

TEST_P(Gather, reports_a_mismatch_on_all_ranks_when_their_lists_differ) {
  if (ranks() < 2) GTEST_SKIP() << "needs a peer";
  auto const errors = test::try_thread_ranks(ranks(), [this](Collective const& world) {
    std::vector<int> const listed = world.rank() == 1 ? std::vector{1, 0} : std::vector{0, 1};
    get_tensors_parallel(tensor_of(world.rank(), 1), listed, world, options(world)).close();
  });
  for (auto const& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THROW(std::rethrow_exception(error), MismatchError);
  }
}

/// Rank 0 gathers through memory, rank 1 through files. The error describes both calls, even at the default check
/// level.
void use_different_exchanges(Collective const& world, std::filesystem::path const& directory) {
  GatherOptions options{.release = Release::lazy};
  if (world.rank() == 1) options = {.workspace_path = directory};
  try {
    get_tensors_parallel(tensor_of(world.rank(), 1), world, options).close();
    ADD_FAILURE() << "agreed";
  } catch (MismatchError const& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("get_tensors_parallel of ranks [0, 1] through shared memory lazily"));
    EXPECT_THAT(e.what(), testing::HasSubstr("get_tensors_parallel of ranks [0, 1] through files"));
  }
}

TEST(GatherCheck, tells_tensors_from_state_dicts) {
  test::run_thread_ranks(2, [](Collective const& world) {
    auto const tensor = tensor_of(world.rank(), 1);
    auto const error = test::error_of<MismatchError>([&] {
      if (world.rank() == 0) get_tensors_parallel(tensor, world).close();
      if (world.rank() == 1) get_tensors_parallel(StateDict{{"w", tensor}}, world).close();
    });
    EXPECT_THAT(error.message, testing::HasSubstr("get_tensors_parallel of ranks [0, 1]"));
    EXPECT_THAT(error.message, testing::HasSubstr("get_tensors_parallel of state dicts of ranks [0, 1]"));
  });
}

TEST(GatherCheck, describes_the_call_of_each_side) {
  test::TemporaryDirectory const directory;
  test::run_thread_ranks(2, [&](Collective const& world) { use_different_exchanges(world, directory.path()); });
}

TEST(GatherCheck, describes_the_call_of_each_side_across_nodes) {
  test::TemporaryDirectory const directory;
  for (bool const node_memory : {true, false}) {
    test::run_message_ranks(
        2, [&](Collective const& world, test::MemoryHub&) { use_different_exchanges(world, directory.path()); },
        {.node_memory = node_memory});
  }
}

TEST(GatherAcrossNodes, releases_the_network_with_the_last_handle) {
  auto const hub = std::make_shared<test::MemoryHub>(2);
  std::vector<std::function<void()>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&hub, rank] {
      auto const world = test::join_by_messages(hub, rank, {});
      auto range = get_tensors_parallel(tensor_of(rank, 1), world);
      int received = 0;
      for (auto const& tensor : range) expect_same_tensor(tensor, tensor_of(received++, 1));
      EXPECT_EQ(received, rank == 0 ? 2 : 0);
      range.close();
    });
  }
  for (auto const& error : test::run_threads(ranks)) EXPECT_EQ(test::text_of(error), "");
  EXPECT_EQ(hub.use_count(), 1);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, Gather,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(Through::memory, Through::files, Through::named_files,
                                                          Through::named_memory)),
                         name_of);

TEST(GatherFiles, are_removed_at_the_end_of_a_call_with_its_own_workspace) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(3, [&](Collective const& world) {
    get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace_path = directory.path()}).close();
    world.barrier();
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  });
}

TEST(GatherFiles, leave_the_states_that_the_ranks_wrote_to_the_directory) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(3, [&](Collective const& world) {
    NFSWorkspace(directory.path(), {.rank = world.rank()}).write_configs_and_weights({{"layer", world.rank()}}, {});
    get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace_path = directory.path()}).close();
    world.barrier();
    auto const state = NFSWorkspace::open(directory.path()).read_configs_and_weights_from_rank(world.rank());
    ASSERT_TRUE(state);
    EXPECT_EQ(state->config.at("layer"), world.rank());
  });
}

std::size_t files_in(std::filesystem::path const& path) {
  return as_size(std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()));
}

TEST(GatherFiles, are_removed_from_a_workspace_that_keeps_its_other_states) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(3, [&](Collective const& world) {
    NFSWorkspace workspace(directory.path(), {.rank = world.rank(), .existing = Existing::keep});
    workspace.write_configs_and_weights({{"layer", 7}}, {});
    world.barrier();
    for (int i = 0; i < 3; ++i)
      get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace = workspace}).close();
    world.barrier();
    EXPECT_EQ(files_in(directory.path()), 3U);
    EXPECT_EQ(workspace.read_configs_and_weights_from_rank(world.rank())->config.at("layer"), 7);
    world.barrier();
  });
}

TEST(GatherFiles, leave_the_states_of_an_earlier_job_in_a_named_directory) {
  test::TemporaryDirectory const directory;
  for (int rank = 0; rank < 2; ++rank) {
    auto workspace = NFSWorkspace(directory.path(), {.rank = rank});
    workspace.write_configs_and_weights({{"rank", rank}}, {});
  }
  run_thread_ranks(2, [&](Collective const& world) {
    get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace_path = directory.path()}).close();
  });
  auto const reader = NFSWorkspace::open(directory.path());
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(reader.read_configs_and_weights_from_rank(rank)->config.at("rank"), rank);
}

TEST(GatherFiles, are_no_states_while_the_gather_is_open) {
  for (bool const of_this_process : {true, false}) {
    test::TemporaryDirectory const directory;
    auto const write = [&](int rank) {
      NFSWorkspace(directory.path(), {.rank = rank}).write_configs_and_weights({{"layer", rank}}, {});
    };
    if (!of_this_process) {
      auto const child = ::fork();
      if (child == 0) {
        write(1);
        ::_exit(0);
      }
      ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    }
    run_thread_ranks(2, [&](Collective const& world) {
      if (of_this_process && world.rank() == 1) write(1);
      world.barrier();
      auto range = get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace_path = directory.path()});
      if (world.rank() == 0) {
        static_cast<void>(range[1]);
        auto const state = NFSWorkspace::open(directory.path()).read_configs_and_weights_from_rank(1);
        ASSERT_TRUE(state);
        EXPECT_EQ(state->config.at("layer"), 1);
      }
      range.close();
    });
  }
}

TEST(GatherFiles, stay_when_the_options_keep_them) {
  for (bool const named : {false, true}) {
    test::TemporaryDirectory const directory;
    run_thread_ranks(3, [&](Collective const& world) {
      GatherOptions options{.files = GatherFiles::keep};
      if (named) options.workspace = NFSWorkspace(directory.path(), {.rank = world.rank(), .existing = Existing::keep});
      if (!named) options.workspace_path = directory.path();
      get_tensors_parallel(tensor_of(world.rank(), 2), world, options).close();
      world.barrier();
      EXPECT_EQ(files_in(directory.path()), 2U) << "the receiver writes none";
      world.barrier();
    });
    auto const reader = NFSWorkspace::open(directory.path());
    EXPECT_TRUE(reader.read_configs_and_weights_from_rank(2).has_value());
  }
}

TEST(GatherFiles, are_removed_from_a_workspace_after_a_failed_range) {
  test::TemporaryDirectory const directory;
  static_cast<void>(test::try_thread_ranks(2, [&](Collective const& world) {
    NFSWorkspace const workspace(directory.path(), {.rank = world.rank(), .existing = Existing::keep});
    auto range = get_tensors_parallel(tensor_of(world.rank(), 2), world, {.workspace = workspace});
    if (range.is_receiver()) throw std::runtime_error("the consumer fails");
    range.close();
  }));
  EXPECT_EQ(files_in(directory.path()), 0U);
}

TEST(GatherFiles, end_in_a_timeout_when_ranks_use_different_directories) {
  test::TemporaryDirectory const directory;
  auto const errors = test::try_thread_ranks(2, [&](Collective const& world) {
    auto const mine = directory.path() / std::to_string(world.rank());
    static_cast<void>(get_tensors_parallel(tensor_of(world.rank(), 1), world,
                                           {.workspace_path = mine, .timeout = std::chrono::milliseconds(300)})
                          .take());
  });
  ASSERT_TRUE(errors[0]);
  try {
    std::rethrow_exception(errors[0]);
  } catch (IoError const& error) {
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("did not become visible here in 300 ms"));
    EXPECT_THAT(error.info().hint, testing::HasSubstr("the same directory"));
    EXPECT_FALSE(error.group_usable());  // the group has ended, because the error has left the range
  }
  ASSERT_TRUE(errors[1]);
  EXPECT_THROW(std::rethrow_exception(errors[1]), PeerLostError);
}

TEST(GatherFiles, must_be_closed_before_other_calls_even_with_lazy_release) {
  test::TemporaryDirectory const directory;
  run_thread_ranks(2, [&](Collective const& world) {
    auto range = get_tensors_parallel(tensor_of(world.rank(), 1), world,
                                      {.workspace_path = directory.path(), .release = Release::lazy});
    if (range.is_receiver()) {
      EXPECT_THROW(world.barrier(), UsageError);
    }
    range.close();
    world.barrier();
  });
}

TEST(GatherFiles, are_refused_in_a_group_of_one_as_in_a_larger_group) {
  test::TemporaryDirectory const directory;
  auto const alone = connect({.backend = "fake"});
  std::ofstream(directory.path() / "file") << "no directory";
  EXPECT_THROW(
      static_cast<void>(get_tensors_parallel(tensor_of(0, 1), alone, {.workspace_path = directory.path() / "file"})),
      IoError);
  Workspace const torch = NFSWorkspace(directory.path() / "torch", {.rank = 0, .format = StateFormat::torch});
  EXPECT_THROW(static_cast<void>(get_tensors_parallel(tensor_of(0, 1), alone, {.workspace = torch})), UsageError);
}

TEST(GatherExchange, is_a_mismatch_on_all_ranks_when_it_differs) {
  test::TemporaryDirectory const directory;
  auto const errors = test::try_thread_ranks(2, [&](Collective const& world) {
    GatherOptions through;
    if (world.rank() == 1) through.workspace_path = directory.path();
    get_tensors_parallel(tensor_of(world.rank(), 1), world, through).close();
  });
  for (auto const& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_THROW(std::rethrow_exception(error), MismatchError);
  }
}

}  // namespace
}  // namespace crossrank
