#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <vector>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Calls on elements of the caller: vectors, arrays and spans instead of tensors.
namespace crossrank::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::vector<std::int32_t>;

/// Returns the elements of rank r: 10 r, 10 r + 1, ...
Values of_rank(int rank, int count = 3) {
  Values values(as_size(count));
  std::iota(values.begin(), values.end(), 10 * rank);
  return values;
}

/// Returns the elements of all ranks, one after the other, `count_of(r)` of rank r.
template <class CountOf>
Values joined(int ranks, CountOf count_of) {
  Values all;
  for (int rank = 0; rank < ranks; ++rank) {
    auto const part = of_rank(rank, count_of(rank));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Values joined(int ranks) {
  return joined(ranks, [](int) { return 3; });
}

void elements_are_broadcast_and_reduced(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  int const ranks_sum = n * (n - 1) / 2;
  for (int root = 0; root < n; ++root) {
    auto vector = of_rank(world.rank());
    world.broadcast(vector, {root});
    EXPECT_EQ(vector, of_rank(root));
    std::array<double, 2> array{world.rank() + 0.5, 7};
    world.broadcast(array, {root});
    EXPECT_THAT(array, ElementsAre(root + 0.5, 7));
    bool flags[3] = {world.rank() == root, false, true};
    world.broadcast(std::span(flags), {root});
    EXPECT_THAT(flags, ElementsAre(true, false, true));
    auto reduced = of_rank(world.rank());
    world.reduce(reduced, ReduceOp::sum, {root});
    EXPECT_EQ(reduced.back(), world.rank() == root ? 10 * ranks_sum + 2 * n : 10 * world.rank() + 2);
  }
  auto sums = of_rank(world.rank());
  world.all_reduce(sums);
  EXPECT_THAT(sums, ElementsAre(10 * ranks_sum, 10 * ranks_sum + n, 10 * ranks_sum + 2 * n));
  std::array<float, 1> largest{static_cast<float>(world.rank())};
  world.all_reduce(largest, ReduceOp::max);
  EXPECT_EQ(largest[0], static_cast<float>(n - 1));
  EXPECT_EQ(world.all_reduce_value(world.rank()), ranks_sum);
  EXPECT_EQ(world.all_reduce_value(world.rank() + 0.25, ReduceOp::max), n - 0.75);
  EXPECT_EQ(world.all_reduce_value(std::size_t{1} << 40U, ReduceOp::bor), std::size_t{1} << 40U);
}

void elements_are_gathered_and_scattered(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  auto const mine = of_rank(world.rank());
  Values all(mine.size() * as_size(n));
  world.all_gather(all, mine);
  EXPECT_EQ(all, joined(n));
  for (int root = 0; root < n; ++root) {
    bool const is_root = world.rank() == root;
    Values gathered(is_root ? all.size() : 0);
    world.gather(gathered, mine, {root});
    EXPECT_EQ(gathered, is_root ? joined(n) : Values());
    Values part(mine.size());
    world.scatter(part, is_root ? std::span<std::int32_t const>(all) : std::span<std::int32_t const>(), {root});
    EXPECT_EQ(part, mine);
  }
  Values reduced(mine.size());
  world.reduce_scatter(reduced, all);
  EXPECT_THAT(reduced, ElementsAre(n * mine[0], n * mine[1], n * mine[2]));
  Values exchanged(all.size());
  world.all_to_all(exchanged, all);
  for (int from = 0; from < n; ++from) EXPECT_EQ(exchanged[as_size(3 * from + 1)], mine[1]);
}

void elements_are_divided_unevenly(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  auto const count_of = [](int rank) { return rank % 3 + 1; };
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < n; ++rank) rows.push_back(count_of(rank));
  int const root = n - 1;
  auto const mine = of_rank(world.rank(), count_of(world.rank()));
  auto const expected = joined(n, count_of);
  Values all(expected.size());
  world.all_gatherv(all, mine, {.rows = rows});
  EXPECT_EQ(all, expected);
  std::ranges::fill(all, 0);
  world.gatherv(all, mine, {.rows = rows, .root = root});
  EXPECT_EQ(all, world.rank() == root ? expected : Values(expected.size()));
  Values part(mine.size());
  world.scatterv(part, expected, {.rows = rows, .root = root});
  EXPECT_EQ(part, mine);
  world.reduce_scatterv(part, expected, {.rows = rows}, ReduceOp::max);
  EXPECT_EQ(part, mine);
  // Each rank sends its own part to all.
  std::vector<std::int64_t> const sent(as_size(n), count_of(world.rank()));
  Values out;
  for (int to = 0; to < n; ++to) out.insert(out.end(), mine.begin(), mine.end());
  world.all_to_allv(all, out, {.send = sent, .receive = rows});
  EXPECT_EQ(all, expected);
}

void elements_are_sent(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  int const next = (world.rank() + 1) % n;
  int const before = (world.rank() + n - 1) % n;
  std::array<std::int32_t, 3> came{};
  world.send(std::vector<std::int32_t>{world.rank(), 1, 2}, next, {.tag = 4});
  world.recv(came, before, {.tag = 4});
  EXPECT_THAT(came, ElementsAre(before, 1, 2));
  auto const mine = of_rank(world.rank());
  world.sendrecv(came, mine, {.dst = next, .src = before});
  EXPECT_TRUE(std::ranges::equal(came, of_rank(before)));
}

void requests_take_elements(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  auto const mine = of_rank(world.rank());
  int const next = (world.rank() + 1) % n;
  int const before = (world.rank() + n - 1) % n;
  Values all(as_size(3 * n));
  Values gathered(all.size());
  Values part(3);
  Values reduced(3);
  Values exchanged(all.size());
  auto sums = mine;
  auto at_root = mine;
  auto from_last = mine;
  std::array<std::int32_t, 3> came{};
  auto const whole = joined(n);
  std::vector<Request> requests;
  requests.push_back(world.iall_gather(all, mine));
  requests.push_back(world.igather(gathered, mine, {n - 1}));
  requests.push_back(world.iscatter(part, whole, {0}));
  requests.push_back(world.ireduce_scatter(reduced, whole, ReduceOp::min));
  requests.push_back(world.iall_to_all(exchanged, whole));
  requests.push_back(world.iall_reduce(sums));
  requests.push_back(world.ireduce(at_root, ReduceOp::sum, {0}));
  requests.push_back(world.ibroadcast(std::span(from_last), {n - 1}));
  requests.push_back(world.irecv(came, before));
  requests.push_back(world.isend(std::span<std::int32_t const>(mine), next));
  for (auto& request : requests) request.wait();
  EXPECT_EQ(all, whole);
  EXPECT_EQ(gathered, world.rank() == n - 1 ? whole : Values(all.size()));
  EXPECT_EQ(part, mine);
  EXPECT_EQ(reduced, mine);
  EXPECT_EQ(exchanged.front(), mine.front());
  EXPECT_EQ(sums.front(), 10 * n * (n - 1) / 2);
  EXPECT_EQ(at_root.front(), world.rank() == 0 ? sums.front() : mine.front());
  EXPECT_EQ(from_last, of_rank(n - 1));
  EXPECT_TRUE(std::ranges::equal(came, of_rank(before)));
}

/// Wrong sizes are refused before anything is sent, and the group stays usable.
void elements_that_do_not_fit_are_refused(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  Values const mine(3);
  Values out(3 * n + 1);
  auto const info = error_of<UsageError>([&] { world.all_gather(out, mine); });
  EXPECT_EQ(info.operation, "all_gather");
  EXPECT_EQ(info.expected, std::to_string(n) + " x I32 [3]");
  EXPECT_EQ(info.got, "I32 [" + std::to_string(3 * n + 1) + "]");
  error_of<UsageError>([&] { world.gather(out, mine, {world.rank()}); });
  error_of<UsageError>([&] { world.scatter(out, mine, {world.rank()}); });
  error_of<UsageError>([&] { world.reduce_scatter(out, mine); });
  error_of<UsageError>([&] { static_cast<void>(world.iall_gather(out, mine)); });
  std::vector<std::int64_t> const rows(n, 2);
  error_of<UsageError>([&] { world.all_gatherv(out, mine, {.rows = rows}); });
  error_of<UsageError>([&] { world.broadcast(out, {world.world_size()}); });
  error_of<UsageError>([&] { world.send(mine, -1); });
  std::vector<float> reals(3);
  error_of<UsageError>([&] { world.all_reduce(reals, ReduceOp::bxor); });
  world.barrier();
}

/// Overlaps are found whether tensors or elements name the memory.
void elements_that_overlap_are_refused(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  Values all(3 * n + 3);
  auto const whole = std::span(all).first(3 * n);
  error_of<UsageError>([&] { world.all_gather(whole, std::span(all).subspan(1, 3)); });
  auto const own = whole.subspan(3 * as_size(world.rank()), 3);
  std::ranges::copy(of_rank(world.rank()), own.begin());
  world.all_gather(whole, own);
  EXPECT_TRUE(std::ranges::equal(whole, joined(world.world_size())));
}

void elements_match_tensors_of_one_dimension(ConformanceRank& self) {
  auto& world = self.world;
  auto values = of_rank(world.rank());
  if (world.rank() == 0) {
    auto tensor = Tensor::of(values, {3});
    world.all_reduce(tensor, ReduceOp::max);
    std::ranges::copy(tensor.as<std::int32_t>(), values.begin());
  } else {
    world.all_reduce(values, ReduceOp::max);
  }
  EXPECT_EQ(values, of_rank(world.world_size() - 1));
}

void different_elements_are_a_mismatch(ConformanceRank& self) {
  auto const checking = make_collective(self.world.transport(), self.world.timeout_policy(), CheckLevel::collective);
  Values values(checking.rank() == 0 ? 3 : 4);
  auto const info = error_of<MismatchError>([&] { checking.broadcast(values); });
  EXPECT_THAT(info.message, HasSubstr("broadcast root 0 I32 [3]"));
  EXPECT_THAT(info.message, HasSubstr("broadcast root 0 I32 [4]"));
}

constexpr ConformanceCase elements_list[] = {
    {"elements_are_broadcast_and_reduced", elements_are_broadcast_and_reduced},
    {"elements_are_gathered_and_scattered", elements_are_gathered_and_scattered},
    {"elements_are_divided_unevenly", elements_are_divided_unevenly},
    {"elements_are_sent", elements_are_sent},
    {"requests_take_elements", requests_take_elements},
    {"elements_that_do_not_fit_are_refused", elements_that_do_not_fit_are_refused},
    {"elements_that_overlap_are_refused", elements_that_overlap_are_refused, 2},
    {"elements_match_tensors_of_one_dimension", elements_match_tensors_of_one_dimension},
    {"different_elements_are_a_mismatch", different_elements_are_a_mismatch, 2, true},
};

}  // namespace

std::span<ConformanceCase const> element_cases() { return elements_list; }

}  // namespace crossrank::test
