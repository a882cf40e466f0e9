#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <crossrank/crossrank.hpp>
#include <crossrank/tensor/clone_on_write.hpp>

#include "lib/core/as_size.hpp"
#include "tests/support/thread_ranks.hpp"
#include "tests/workspace/filled_tensor.hpp"

/// The promises of shared memory: no copies, leases that outlive the range, and memory that is not overwritten while a
/// reader uses it.
namespace crossrank {
namespace {

using namespace std::chrono_literals;
using test::all_bytes_are;
using test::filled;
using test::mebi;
using test::run_thread_ranks;

/// Returns the line of /proc/self/maps about the mapping that holds an address.
std::string mapping_of(std::byte const* address) {
  auto const wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    auto const dash = line.find('-');
    auto const first = std::stoull(line.substr(0, dash), nullptr, 16);
    auto const end = std::stoull(line.substr(dash + 1), nullptr, 16);
    if (wanted >= first && wanted < end) return line;
  }
  return {};
}

TEST(SharedMemory, does_not_copy_an_arena_backed_tensor) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace const workspace(world);
    auto const mine = filled(workspace.empty({mebi}, Dtype::u8), world.rank() + 1);
    world.barrier();
    auto const before = statistics().bytes_copied;
    auto range = get_tensors_parallel(mine, world);
    if (range.is_receiver()) {
      EXPECT_TRUE(all_bytes_are(range[1], 2));
      EXPECT_EQ(range[0].data(), mine.data()) << "the receiver's own item is its own tensor";
    }
    range.close();
    world.barrier();
    EXPECT_EQ(statistics().bytes_copied, before);
  });
}

TEST(SharedMemory, keeps_received_tensors_valid_and_read_only_after_the_range) {
  run_thread_ranks(2, [](Collective const& world) {
    std::vector<Tensor> kept;
    for (int round = 0; round < 4; ++round) {
      auto all =
          get_tensors_parallel(filled(Tensor::empty({mebi / 4}, Dtype::u8), 10 * world.rank() + round), world).take();
      if (!all.empty()) kept.push_back(all[1]);
    }
    for (std::size_t round = 0; round < kept.size(); ++round) {
      EXPECT_TRUE(all_bytes_are(kept[round], 10 + static_cast<int>(round)));
      EXPECT_THROW(static_cast<void>(kept[round].mutable_bytes()), UsageError);
      auto copy = kept[round].clone();
      EXPECT_NO_THROW(static_cast<void>(copy.mutable_bytes()));
    }
    world.barrier();
  });
}

TEST(SharedMemory, stops_the_owner_from_writing_a_tensor_that_a_reader_holds) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace const workspace(world);
    auto mine = filled(workspace.empty({4096}, Dtype::u8), 7);
    auto all = get_tensors_parallel(mine, world).take();
    world.barrier();
    if (world.rank() == 1) {
      EXPECT_THROW(static_cast<void>(mine.mutable_bytes()), UsageError);
    }
    world.barrier();
    all.clear();
    world.barrier();
    EXPECT_NO_THROW(static_cast<void>(mine.mutable_bytes()));
  });
}

class PrivateView : public testing::TestWithParam<bool> {};

/// A reader that wants to write gets the sender's pages once more, copy-on-write, and keeps the lease as long.
TEST_P(PrivateView, of_a_received_tensor_is_no_copy_and_keeps_the_lease) {
  run_thread_ranks(2, [](Collective const& world) {
    SharedMemoryWorkspace const workspace(world);
    auto mine = filled(GetParam() ? workspace.empty({mebi}, Dtype::u8) : Tensor::empty({mebi}, Dtype::u8), 7);
    auto all = get_tensors_parallel(mine, world).take();
    Tensor own;
    if (!all.empty()) {
      own = clone_on_write(all[1]);
      EXPECT_THAT(mapping_of(own.data()), testing::ContainsRegex("rw-p.*crossrank"));
      EXPECT_TRUE(all_bytes_are(own, 7));
      filled(own, 9);
      EXPECT_TRUE(all_bytes_are(all[1], 7)) << "the reader's other views";
      all.clear();
    }
    world.barrier();
    if (world.rank() == 1 && GetParam()) {
      EXPECT_THROW(static_cast<void>(mine.mutable_bytes()), UsageError);
    }
    EXPECT_TRUE(all_bytes_are(mine, 7)) << "the sender's tensor";
    world.barrier();
    own = {};
    world.barrier();
    EXPECT_NO_THROW(static_cast<void>(mine.mutable_bytes()));
  });
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, PrivateView, testing::Bool(),
                         [](auto const& one) { return one.param ? "in_the_arena" : "in_a_slab"; });

TEST(SharedMemory, reuses_memory_for_gathers_in_a_loop) {
  run_thread_ranks(3, [](Collective const& world) {
    auto const mine = filled(Tensor::empty({mebi}, Dtype::u8), world.rank());
    for (int warm = 0; warm < 4; ++warm) get_tensors_parallel(mine, world).close();
    world.barrier();
    auto const before = statistics().arena_growths;
    for (int i = 0; i < 50; ++i) {
      auto range = get_tensors_parallel(mine, world);
      for (auto const& tensor : range) EXPECT_EQ(tensor.nbytes(), as_size(mebi));
      range.close();
    }
    world.barrier();
    EXPECT_EQ(statistics().arena_growths, before);
  });
}

TEST(SharedMemory, keeps_the_group_usable_when_a_writer_runs_out_of_space) {
  auto const errors = test::try_thread_ranks(
      3,
      [](Collective const& world) {
        auto const size = world.rank() == 2 ? 64 * mebi : mebi;
        auto const big = Tensor::zeros({size}, Dtype::u8);
        try {
          get_tensors_parallel(big, world).close();
          ADD_FAILURE() << "rank " << world.rank() << " got no error";
        } catch (UnavailableError const& e) {
          EXPECT_EQ(world.rank(), 2);
          EXPECT_THAT(e.what(), testing::HasSubstr("arena"));
        } catch (RemoteError const& e) {
          EXPECT_NE(world.rank(), 2);
          EXPECT_TRUE(e.group_usable());
          EXPECT_THAT(std::vector<int>(e.failed_ranks().begin(), e.failed_ranks().end()), testing::ElementsAre(2));
        }
        EXPECT_EQ(get_tensors_parallel(Tensor::scalar<int>(world.rank()), world).take().size(),
                  world.rank() == 0 ? 3U : 0U);
      },
      {.arena_cap = 16 * mebi});
  for (auto const& error : errors) EXPECT_EQ(test::text_of(error), "");
}

TEST(SharedMemory, names_the_leases_when_they_hold_all_memory) {
  run_thread_ranks(2,
                   [](Collective const& world) {
                     std::vector<Tensor> kept;
                     std::string text;
                     for (int i = 0; i < 64 && text.empty(); ++i) {
                       try {
                         auto all = get_tensors_parallel(Tensor::zeros({mebi}, Dtype::u8), world).take();
                         if (!all.empty()) kept.push_back(all[1]);
                       } catch (Error const& e) {
                         text = e.what();
                       }
                     }
                     EXPECT_THAT(text, testing::HasSubstr("leased by rank 0"));
                     kept.clear();
                     world.barrier();
                     EXPECT_EQ(get_tensors_parallel(Tensor::zeros({mebi}, Dtype::u8), world).take().size(),
                               world.rank() == 0 ? 2U : 0U);
                   },
                   {.arena_cap = 8 * mebi});
}

TEST(SharedMemory, lets_lazy_writers_continue_before_the_receiver_closes) {
  std::atomic<bool> writer_continued{false};
  run_thread_ranks(2, [&](Collective const& world) {
    auto range = get_tensors_parallel(Tensor::scalar<int>(world.rank()), world, {.release = Release::lazy});
    if (world.rank() == 1) {
      range.close();
      writer_continued = true;
      writer_continued.notify_all();
      return;
    }
    writer_continued.wait(false);
    EXPECT_EQ(range[1].item<int>(), 1);
    range.close();
  });
}

/// The writer's collective waits for the end of the range. The receive that is pending makes progress meanwhile, and
/// with it the collectives of the group.
TEST(SharedMemory, lets_a_collective_wait_for_a_lazy_range_while_a_message_is_pending) {
  constexpr std::size_t count = 200'000;  // takes several steps
  std::atomic<bool> writer_waits{false};
  run_thread_ranks(2, [&](Collective const& world) {
    auto const value = [](int round, int rank) { return 10 * round + rank; };
    std::vector<std::function<void(int)>> const calls{
        [&](int round) {
          std::vector<int> gathered(2);
          world.gather(gathered, std::vector{value(round, world.rank())}, {.root = 1});
          if (world.rank() == 0) return;
          EXPECT_THAT(gathered, testing::ElementsAre(value(round, 0), value(round, 1)));
        },
        [&](int round) {
          std::vector<int> all(2 * count);
          world.all_gather(all, std::vector<int>(count, value(round, world.rank())));
          EXPECT_THAT((std::vector{all.front(), all[count - 1], all[count], all.back()}),
                      testing::ElementsAre(value(round, 0), value(round, 0), value(round, 1), value(round, 1)));
        },
        [&](int round) {
          std::vector<int> sum(count, value(round, world.rank()));
          world.all_reduce(sum);
          EXPECT_EQ(sum.front(), value(round, 0) + value(round, 1));
          EXPECT_EQ(sum.back(), value(round, 0) + value(round, 1));
        }};
    for (std::size_t first = 0; first < calls.size(); ++first) {
      auto range = get_tensors_parallel(Tensor::scalar<int>(world.rank()), world, {.release = Release::lazy});
      if (world.rank() == 0) {
        writer_waits.wait(false);
        std::this_thread::sleep_for(20ms);  // by then the writer is in its wait
        writer_waits = false;
      }
      range.close();
      auto received = Tensor::zeros({1}, Dtype::i32);
      auto pending = world.irecv(received, 1 - world.rank());
      if (world.rank() == 1) {
        writer_waits = true;
        writer_waits.notify_all();
      }
      int const round = static_cast<int>(first) + 1;
      for (std::size_t i = 0; i < calls.size(); ++i) calls[(first + i) % calls.size()](round);
      world.send(Tensor::of(std::vector{round}, {1}), 1 - world.rank());
      pending.wait();
      EXPECT_EQ(received.as<int>().front(), round);
    }
  });
}

/// The receiver closes the range only after the writer has started its call.
TEST(SharedMemory, lets_lazy_writers_start_a_collective_before_the_receiver_closes) {
  std::atomic<bool> writer_started{false};
  auto const body = [&](Collective const& world) {
    auto range = get_tensors_parallel(Tensor::scalar<int>(world.rank()), world, {.release = Release::lazy});
    if (world.rank() == 0) writer_started.wait(false);
    range.close();
    auto sum = Tensor::of(std::vector<float>(50'000, 1), {50'000});
    auto one = Tensor::of(std::vector<float>{1}, {1});
    std::vector<Request> requests;
    requests.push_back(world.iall_reduce(sum));
    requests.push_back(world.iall_reduce(one));
    if (world.rank() == 1) {
      EXPECT_FALSE(requests.front().test());
      writer_started = true;
      writer_started.notify_all();
    }
    for (auto& request : requests) request.wait();
    EXPECT_EQ(sum.as<float>().back(), 2);
    EXPECT_EQ(one.as<float>().front(), 2);
  };
  run_thread_ranks(2, body);
  writer_started = false;
  test::run_driven_ranks(2, body);
}

/// The writers have already arrived at the end of the range, so any other call of the receiver would be a mismatch for
/// all ranks.
TEST(SharedMemory, requires_the_receiver_to_close_a_lazy_range_before_other_calls) {
  run_thread_ranks(3, [](Collective world) {
    GatherOptions const lazy{.release = Release::lazy};
    auto range = get_tensors_parallel(Tensor::scalar<int>(world.rank()), world, lazy);
    if (world.rank() == 1) world.send(Tensor::scalar(7), 0);
    if (range.is_receiver()) {
      EXPECT_THROW(world.barrier(), UsageError);
      EXPECT_THROW(static_cast<void>(get_tensors_parallel(Tensor::scalar(1), world, lazy)), UsageError);
      EXPECT_THROW(static_cast<void>(world.ibarrier()), UsageError);
      EXPECT_THROW(world.close(), UsageError);
      auto message = Tensor::scalar(0);
      world.recv(message, 1);  // point-to-point messages stay allowed
      EXPECT_EQ(message.item<int>(), 7);
      EXPECT_EQ(range[2].item<int>(), 2);
    }
    range.close();
    world.barrier();
    static_cast<void>(get_tensors_parallel(Tensor::scalar(1), world, lazy));
    world.barrier();
  });
}

TEST(SharedMemory, waits_with_a_timeout_beyond_the_range_of_the_clock) {
  run_thread_ranks(2, [](Collective const& world) {
    GatherOptions const step_timeout{.timeout = std::chrono::milliseconds::max()};
    // In some of the ranges one rank has to wait for the other.
    for (int i = 0; i < 200; ++i) {
      auto const got = get_tensors_parallel(Tensor::scalar<int>(i), world, step_timeout).take();
      EXPECT_EQ(got.size(), world.rank() == 0 ? 2U : 0U);
    }
  });
}

TEST(SharedMemory, throws_known_failures_when_a_lazy_writer_closes) {
  std::atomic<bool> failed{false};
  auto const errors =
      test::try_thread_ranks(3,
                             [&](Collective const& world) {
                               GatherOptions const lazy{.release = Release::lazy};
                               if (world.rank() == 1) {
                                 auto range = get_tensors_parallel(Tensor::scalar<int>(1), world, lazy);
                                 failed.wait(false);
                                 range.close();
                                 return;
                               }
                               auto const mine = Tensor::empty({world.rank() == 2 ? 16 * mebi : 1}, Dtype::u8);
                               try {
                                 auto range = get_tensors_parallel(mine, world, lazy);
                                 range.close();
                               } catch (RemoteError const&) {  // the receiver has waited for the verdict
                                 failed = true;
                                 failed.notify_all();
                                 throw;
                               }
                             },
                             {.arena_cap = 8 * mebi});
  EXPECT_THAT(test::text_of(errors[1]), testing::HasSubstr("rank 2 could not do its part"));
  EXPECT_THAT(test::text_of(errors[2]), testing::HasSubstr("no space"));
}

/// The writers do not wait for the verdict, and most of them leave the range before it is known.
TEST(SharedMemory, keeps_no_memory_of_lazy_ranges_that_failed) {
  run_thread_ranks(3,
                   [](Collective const& world) {
                     auto const mine = Tensor::empty({world.rank() == 2 ? 20 * mebi : mebi}, Dtype::u8);
                     int failures = 0;
                     for (int i = 0; i < 20; ++i) {
                       try {
                         auto range = get_tensors_parallel(mine, world, {.release = Release::lazy});
                         range.close();
                       } catch (Error const& error) {
                         ++failures;
                         EXPECT_TRUE(error.group_usable()) << error.what();
                         EXPECT_THAT(error.what(),
                                     testing::AnyOf(testing::HasSubstr("rank 2"), testing::HasSubstr("no space")));
                       }
                     }
                     if (world.rank() == 2) {
                       EXPECT_GT(failures, 0);
                     }
                     world.barrier();
                     SharedMemoryWorkspace workspace(world);
                     if (world.rank() == 1) {
                       EXPECT_NO_THROW(static_cast<void>(workspace.empty({12 * mebi}, Dtype::u8)));
                     }
                     world.barrier();
                   },
                   {.arena_cap = 16 * mebi});
}

/// The cause of a range must stay until all ranks have read it, even if a fast rank fails in the next range.
TEST(SharedMemory, names_the_cause_of_each_of_many_failed_ranges) {
  run_thread_ranks(6,
                   [](Collective const& world) {
                     for (int i = 0; i < 300; ++i) {
                       auto const bytes = world.rank() == 5 ? (16 + i) * mebi : 4;
                       try {
                         get_tensors_parallel(Tensor::empty({bytes}, Dtype::u8), world).close();
                         ADD_FAILURE() << "the contribution of rank 5 does not fit";
                       } catch (RemoteError const& error) {
                         EXPECT_THAT(error.failed_ranks(), testing::ElementsAre(5)) << error.what();
                       } catch (Error const& error) {
                         EXPECT_EQ(world.rank(), 5) << error.what();
                       }
                     }
                   },
                   {.arena_cap = 8 * mebi});
}

TEST(SharedMemory, keeps_two_groups_of_one_rank_independent) {
  run_thread_ranks(4, [](Collective const& world) {
    Mesh const mesh(world, {{"pp", 2}, {"tp", 2}});
    for (int i = 0; i < 20; ++i) {
      auto rows = get_tensors_parallel(Tensor::scalar<int>(world.rank()), mesh["tp"]);
      auto columns = get_tensors_parallel(Tensor::scalar<int>(world.rank()), mesh["pp"]);
      if (rows.is_receiver()) {
        EXPECT_EQ(rows[1].item<int>(), world.rank() + 1);
      }
      if (columns.is_receiver()) {
        EXPECT_EQ(columns[1].item<int>(), world.rank() + 2);
      }
      columns.close();
      rows.close();
    }
  });
}

/// A writer that has contributed to a lazy range may leave.
TEST(SharedMemory, lets_lazy_writers_leave_the_job_before_the_receiver_reads) {
  std::latch left(1);
  run_thread_ranks(2, [&](Collective const& world) {
    auto range = get_tensors_parallel(Tensor::scalar<int>(world.rank() + 5), world, {.release = Release::lazy});
    if (world.rank() == 1) {
      range.close();
      left.count_down();
      return;
    }
    left.wait();
    EXPECT_EQ(range[1].item<int>(), 6);
    range.close();
  });
}

}  // namespace
}  // namespace crossrank
