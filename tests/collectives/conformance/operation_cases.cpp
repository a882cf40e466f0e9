#include <algorithm>
#include <numeric>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/case_device.hpp"
#include "tests/collectives/conformance/conformance.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/support/error_of.hpp"

/// Gathers, scatters and exchanges, in equal and unequal parts, short and long.
namespace crossrank::test {
namespace {

constexpr std::int64_t row_bytes = 7;

/// Returns numbers of rows that cover none, one, odd ones, and more than one step of a long collective.
std::vector<std::int64_t> varied_rows(Collective const& world, int shift) {
  constexpr std::int64_t sizes[] = {0, 1, 3, 1000, 150'001, 64};
  std::vector<std::int64_t> rows;
  for (int rank = 0; rank < world.world_size(); ++rank)
    rows.push_back(sizes[as_size(rank * 5 + shift) % std::size(sizes)]);
  return rows;
}

std::int64_t sum_of(std::vector<std::int64_t> const& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

/// Returns rows whose bytes depend on `seed`.
Tensor rows_of(std::int64_t rows, int seed) {
  auto tensor = Tensor::empty({rows, row_bytes}, Dtype::u8);
  std::ranges::copy(pattern(tensor.nbytes(), seed), tensor.mutable_bytes().begin());
  return on_device(tensor);
}

Tensor buffer_for(std::int64_t rows) { return on_device(Tensor::zeros({rows, row_bytes}, Dtype::u8)); }

/// Expects that `tensor` is the rows of all ranks, one after the other. Those of rank r have the seed `seed + r`.
void expect_joined(Tensor const& tensor, std::vector<std::int64_t> const& rows, int seed) {
  auto const joined = on_host(tensor);
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    auto const expected = pattern(as_size(rows[rank] * row_bytes), seed + static_cast<int>(rank));
    EXPECT_TRUE(std::ranges::equal(joined.bytes().subspan(at, expected.size()), expected)) << "part of rank " << rank;
    at += expected.size();
  }
}

void all_gatherv_joins_rows(ConformanceRank& self) {
  auto& world = self.world;
  for (int shift = 0; shift < 6; ++shift) {
    auto const rows = varied_rows(world, shift);
    auto out = buffer_for(sum_of(rows));
    world.all_gatherv(out, rows_of(at_rank(rows, world.rank()), shift * 10 + world.rank()), {.rows = rows});
    expect_joined(out, rows, shift * 10);
  }
}

void gather_joins_only_at_the_root(ConformanceRank& self) {
  auto& world = self.world;
  for (int root = 0; root < world.world_size(); ++root) {
    for (std::int64_t const rows : {0, 1, 90'000}) {
      std::vector<std::int64_t> const all(as_size(world.world_size()), rows);
      auto out = world.rank() == root ? buffer_for(sum_of(all)) : Tensor();
      world.gather(out, rows_of(rows, root * 10 + world.rank()), {root});
      if (world.rank() == root) expect_joined(out, all, root * 10);
    }
    auto const rows = varied_rows(world, root);
    auto out = world.rank() == root ? buffer_for(sum_of(rows)) : Tensor();
    world.gatherv(out, rows_of(at_rank(rows, world.rank()), root * 20 + world.rank()), {.rows = rows, .root = root});
    if (world.rank() == root) expect_joined(out, rows, root * 20);
  }
}

void scatter_gives_each_rank_its_part(ConformanceRank& self) {
  auto& world = self.world;
  auto const mine = as_size(world.rank());
  for (int root = 0; root < world.world_size(); ++root) {
    for (std::int64_t const rows : {0, 1, 90'000}) {
      auto const total = rows * world.world_size();
      auto const in = world.rank() == root ? rows_of(total, root) : Tensor();
      auto out = buffer_for(rows);
      world.scatter(out, in, {root});
      auto const all = pattern(as_size(total * row_bytes), root);
      EXPECT_TRUE(std::ranges::equal(on_host(out).bytes(), std::span(all).subspan(mine * out.nbytes(), out.nbytes())));
    }
    auto const rows = varied_rows(world, root + 1);
    auto const in = world.rank() == root ? rows_of(sum_of(rows), root + 50) : Tensor();
    auto out = buffer_for(rows[mine]);
    world.scatterv(out, in, {.rows = rows, .root = root});
    auto const all = pattern(as_size(sum_of(rows) * row_bytes), root + 50);
    auto const before =
        as_size(std::accumulate(rows.begin(), rows.begin() + world.rank(), std::int64_t{0}) * row_bytes);
    EXPECT_TRUE(std::ranges::equal(on_host(out).bytes(), std::span(all).subspan(before, out.nbytes())));
  }
}

void all_to_all_exchanges_equal_parts(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  for (std::size_t const part : {std::size_t{0}, std::size_t{5}, std::size_t{300'001}}) {
    std::vector<std::byte> sent;
    for (std::size_t to = 0; to < n; ++to) {
      auto const bytes = pattern(part, world.rank() * 100 + static_cast<int>(to));
      sent.insert(sent.end(), bytes.begin(), bytes.end());
    }
    auto const size = static_cast<std::int64_t>(part);
    auto in = Tensor::empty({world.world_size(), size}, Dtype::u8);
    std::ranges::copy(sent, in.mutable_bytes().begin());
    auto exchanged = on_device(Tensor::zeros({world.world_size(), size}, Dtype::u8));
    world.all_to_all(exchanged, on_device(in));
    auto const out = on_host(exchanged);
    for (std::size_t from = 0; from < n; ++from) {
      EXPECT_TRUE(std::ranges::equal(out.bytes().subspan(from * part, part),
                                     pattern(part, static_cast<int>(from) * 100 + world.rank())))
          << part << " bytes from " << from;
    }
  }
}

void all_to_allv_exchanges_any_parts(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  constexpr std::int64_t sizes[] = {0, 2, 17, 40'000, 1};
  auto const rows_from_to = [&](int from, int to) { return sizes[as_size(from * 3 + to * 2) % std::size(sizes)]; };
  std::vector<std::int64_t> send;
  std::vector<std::int64_t> receive;
  std::vector<std::byte> sent;
  std::vector<std::byte> expected;
  for (int peer = 0; peer < n; ++peer) {
    send.push_back(rows_from_to(world.rank(), peer));
    receive.push_back(rows_from_to(peer, world.rank()));
    auto const there = pattern(as_size(send.back() * row_bytes), world.rank() * 100 + peer);
    auto const here = pattern(as_size(receive.back() * row_bytes), peer * 100 + world.rank());
    sent.insert(sent.end(), there.begin(), there.end());
    expected.insert(expected.end(), here.begin(), here.end());
  }
  auto in = Tensor::zeros({sum_of(send), row_bytes}, Dtype::u8);
  std::ranges::copy(sent, in.mutable_bytes().begin());
  auto out = buffer_for(sum_of(receive));
  world.all_to_allv(out, on_device(in), {.send = send, .receive = receive});
  EXPECT_TRUE(std::ranges::equal(on_host(out).bytes(), expected));
}

void sendrecv_passes_data_round_a_ring(ConformanceRank& self) {
  auto& world = self.world;
  int const n = world.world_size();
  for (std::int64_t const rows : {1, 50'000}) {
    auto const out = rows_of(rows, world.rank());
    auto in = buffer_for(rows);
    int const before = (world.rank() + n - 1) % n;
    world.sendrecv(in, out, {.dst = (world.rank() + 1) % n, .src = before, .tag = 3});
    EXPECT_TRUE(std::ranges::equal(on_host(in).bytes(), pattern(in.nbytes(), before)));
    auto part = in.narrow(0, 0, rows);
    error_of<UsageError>([&] { world.sendrecv(part, in, {.dst = 0, .src = 0}); });
  }
}

void wrong_sizes_are_refused(ConformanceRank& self) {
  auto& world = self.world;
  auto const n = as_size(world.world_size());
  auto in = buffer_for(static_cast<std::int64_t>(2 * n));
  auto out = buffer_for(static_cast<std::int64_t>(2 * n));
  std::vector<std::int64_t> const few(n + 1, 1);
  std::vector<std::int64_t> negative(n, 1);
  negative[0] = -1;
  std::vector<std::int64_t> const huge(n, std::int64_t{1} << 62);
  EXPECT_EQ(error_of<UsageError>([&] { world.all_gatherv(out, in, {.rows = few}); }).got, std::to_string(n + 1));
  EXPECT_EQ(error_of<UsageError>([&] { world.all_gatherv(out, in, {.rows = negative}); }).got, "-1");
  error_of<UsageError>([&] { world.gatherv(out, in, {.rows = huge}); });
  error_of<UsageError>([&] { world.all_to_all(in, in); });
  auto other = on_device(Tensor::zeros({static_cast<std::int64_t>(2 * n), row_bytes}, Dtype::i8));
  error_of<UsageError>([&] { world.all_to_all(other, in); });
  error_of<UsageError>([&] { world.reduce_scatter(in, in); });
  error_of<UsageError>([&] { world.gather(out, in, {world.world_size()}); });
  auto scalar = on_device(Tensor::scalar<std::uint8_t>(1));
  std::vector<std::int64_t> const ones(n, 1);
  error_of<UsageError>([&] { world.all_gatherv(out, scalar, {.rows = ones}); });
  world.barrier();
}

constexpr ConformanceCase operation_list[] = {
    {"all_gatherv_joins_rows", all_gatherv_joins_rows, 1, false, OnDevices::yes},
    {"gather_joins_only_at_the_root", gather_joins_only_at_the_root, 1, false, OnDevices::yes},
    {"scatter_gives_each_rank_its_part", scatter_gives_each_rank_its_part, 1, false, OnDevices::yes},
    {"all_to_all_exchanges_equal_parts", all_to_all_exchanges_equal_parts, 1, false, OnDevices::yes},
    {"all_to_allv_exchanges_any_parts", all_to_allv_exchanges_any_parts, 1, false, OnDevices::yes},
    {"sendrecv_passes_data_round_a_ring", sendrecv_passes_data_round_a_ring, 1, false, OnDevices::yes},
    {"wrong_sizes_are_refused", wrong_sizes_are_refused, 1, false, OnDevices::yes},
};

}  // namespace

std::span<ConformanceCase const> operation_cases() { return operation_list; }

}  // namespace crossrank::test
