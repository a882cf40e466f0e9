#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/objects.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/stress/random_steps.hpp"

namespace crossrank::test {
namespace {

using Bytes = std::vector<std::byte>;

/// Returns the bytes that a rank sends in this step, to rank `to` or to all.
Bytes bytes_from(StepPlace const& at, int rank, std::int64_t size, int to = 0) {
  return pattern(as_size(size), at.number * 1009 + rank * 31 + to);
}

std::shared_ptr<Tensor> table(std::int64_t rows, std::int64_t width) {
  return std::make_shared<Tensor>(Tensor::zeros({rows, width}, Dtype::u8));
}

std::shared_ptr<Tensor> table_of(std::int64_t width, Bytes const& bytes) {
  auto tensor = table(static_cast<std::int64_t>(bytes.size()) / width, width);
  std::ranges::copy(bytes, tensor->mutable_bytes().begin());
  return tensor;
}

std::shared_ptr<Tensor> none() { return std::make_shared<Tensor>(); }

/// Rows per rank, and the bytes of a row. In every other step all ranks have the same number of rows.
struct Division {
  explicit Division(StepPlace const& at) : is_even(at.script.coin()), width(at.script.below(40) + 1) {
    int const limit = at.script.coin() ? 4 : 300;
    int const all = at.script.below(limit);
    for (int rank = 0; rank < at.ranks(); ++rank) rows.push_back(is_even ? all : at.script.below(limit));
  }
  [[nodiscard]] std::int64_t of(int rank) const { return at_rank(rows, rank); }
  [[nodiscard]] std::int64_t total() const { return std::accumulate(rows.begin(), rows.end(), std::int64_t{0}); }
  /// Returns the data of all ranks together.
  [[nodiscard]] Bytes joined(StepPlace const& at) const {
    Bytes all;
    for (int rank = 0; rank < at.ranks(); ++rank) {
      auto const part = bytes_from(at, rank, of(rank) * width);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  bool is_even;
  std::int64_t width;
  std::vector<std::int64_t> rows{};
};

BegunStep barrier(StepPlace const& at, When when) {
  BegunStep begun{.check = [] {}};
  if (when == When::later) {
    begun.request = at.group.ibarrier();
  } else {
    at.group.barrier();
  }
  return begun;
}

BegunStep broadcast(StepPlace const& at, When when) {
  int const root = at.any_rank();
  auto expected = bytes_from(at, root, static_cast<std::int64_t>(at.script.size()));
  auto const size = static_cast<std::int64_t>(expected.size());
  auto tensor = at.rank() == root ? table_of(1, expected) : table(size, 1);
  BegunStep begun{.check = expecting(at, tensor, std::move(expected))};
  if (when == When::later) {
    begun.request = at.group.ibroadcast(*tensor, {root});
  } else {
    at.group.broadcast(*tensor, {root});
  }
  return begun;
}

BegunStep all_gather(StepPlace const& at, When when) {
  Division const division(at);
  auto const in = table_of(division.width, bytes_from(at, at.rank(), division.of(at.rank()) * division.width));
  auto const out = table(division.total(), division.width);
  BegunStep begun{.check = expecting(at, out, division.joined(at), in)};
  Rows const rows{.rows = division.rows};
  if (when == When::later) {
    begun.request = division.is_even ? at.group.iall_gather(*out, *in) : at.group.iall_gatherv(*out, *in, rows);
  } else if (division.is_even) {
    at.group.all_gather(*out, *in);
  } else {
    at.group.all_gatherv(*out, *in, rows);
  }
  return begun;
}

BegunStep gather(StepPlace const& at, When when) {
  Division const division(at);
  int const root = at.any_rank();
  auto const in = table_of(division.width, bytes_from(at, at.rank(), division.of(at.rank()) * division.width));
  auto const out = at.rank() == root ? table(division.total(), division.width) : none();
  BegunStep begun{.check = expecting(at, out, division.joined(at), in)};
  Rows const rows{.rows = division.rows, .root = root};
  if (when == When::later) {
    begun.request = division.is_even ? at.group.igather(*out, *in, {root}) : at.group.igatherv(*out, *in, rows);
  } else if (division.is_even) {
    at.group.gather(*out, *in, {root});
  } else {
    at.group.gatherv(*out, *in, rows);
  }
  return begun;
}

BegunStep scatter(StepPlace const& at, When when) {
  Division const division(at);
  int const root = at.any_rank();
  auto const in = at.rank() == root ? table_of(division.width, division.joined(at)) : none();
  auto const out = table(division.of(at.rank()), division.width);
  BegunStep begun{.check = expecting(at, out, bytes_from(at, at.rank(), division.of(at.rank()) * division.width), in)};
  Rows const rows{.rows = division.rows, .root = root};
  if (when == When::later) {
    begun.request = division.is_even ? at.group.iscatter(*out, *in, {root}) : at.group.iscatterv(*out, *in, rows);
  } else if (division.is_even) {
    at.group.scatter(*out, *in, {root});
  } else {
    at.group.scatterv(*out, *in, rows);
  }
  return begun;
}

BegunStep all_to_all(StepPlace const& at, When when) {
  bool const is_even = at.script.coin();
  auto const width = at.script.below(20) + 1;
  int const limit = at.script.coin() ? 3 : 100;
  int const same = at.script.below(limit);
  std::vector<std::vector<std::int64_t>> sent(as_size(at.ranks()));  // by source, then destination
  for (auto& row : sent) {
    for (int dst = 0; dst < at.ranks(); ++dst) row.push_back(is_even ? same : at.script.below(limit));
  }
  Bytes given;
  Bytes expected;
  std::vector<std::int64_t> received;
  auto const me = as_size(at.rank());
  for (std::size_t peer = 0; peer < sent.size(); ++peer) {
    auto const other = static_cast<int>(peer);
    auto const out = bytes_from(at, at.rank(), sent[me][peer] * width, other);
    auto const in = bytes_from(at, other, sent[peer][me] * width, at.rank());
    given.insert(given.end(), out.begin(), out.end());
    expected.insert(expected.end(), in.begin(), in.end());
    received.push_back(sent[peer][me]);
  }
  auto const in = table_of(width, given);
  auto const out = table(static_cast<std::int64_t>(expected.size()) / width, width);
  BegunStep begun{.check = expecting(at, out, std::move(expected), in)};
  ExchangedRows const rows{.send = sent[me], .receive = received};
  if (when == When::later) {
    begun.request = is_even ? at.group.iall_to_all(*out, *in) : at.group.iall_to_allv(*out, *in, rows);
  } else if (is_even) {
    at.group.all_to_all(*out, *in);
  } else {
    at.group.all_to_allv(*out, *in, rows);
  }
  return begun;
}

// ---------------------------------------------------------------- objects

std::string object_of(StepPlace const& at, int rank, std::size_t size) {
  return std::to_string(at.number) + "/" + std::to_string(rank) + std::string(size, 'x');
}

void broadcast_object(StepPlace const& at) {
  int const root = at.any_rank();
  auto const size = at.script.size();
  auto const got = at.group.broadcast_object(object_of(at, at.rank(), size), {root});
  ASSERT_EQ(got, object_of(at, root, size)) << "step " << at.number;
}

void gather_objects(StepPlace const& at) {
  int const root = at.any_rank();
  bool const on_all = at.script.coin();
  std::vector<std::string> all;
  for (int rank = 0; rank < at.ranks(); ++rank) all.push_back(object_of(at, rank, at.script.size() % 300));
  auto const& mine = at_rank(all, at.rank());
  auto const got = on_all ? at.group.all_gather_objects(mine) : at.group.gather_objects(mine, {root});
  ASSERT_EQ(got, on_all || at.rank() == root ? all : std::vector<std::string>{}) << "step " << at.number;
}

void scatter_objects(StepPlace const& at) {
  int const root = at.any_rank();
  std::vector<std::string> all;
  for (int rank = 0; rank < at.ranks(); ++rank) all.push_back(object_of(at, rank, at.script.size() % 300));
  auto const got = at.group.scatter_objects(at.rank() == root ? all : std::vector<std::string>{}, {root});
  ASSERT_EQ(got, at_rank(all, at.rank())) << "step " << at.number;
}

/// Every rank sends to the rank a few places after it and receives from the rank as many places before it.
void exchange(StepPlace const& at) {
  auto const size = static_cast<std::int64_t>(at.script.size());
  auto const turn = at.any_rank();
  if (turn == 0) return;  // a send to oneself is refused with several ranks
  int const n = at.ranks();
  int const src = (at.rank() + n - turn) % n;
  auto const out = table_of(1, bytes_from(at, at.rank(), size));
  auto const in = table(size, 1);
  at.group.sendrecv(*in, *out, {.dst = (at.rank() + turn) % n, .src = src, .tag = 5});
  ASSERT_TRUE(std::ranges::equal(in->bytes(), bytes_from(at, src, size))) << "step " << at.number;
}

/// Passes an object along a chain of ranks. At the end it lists the ranks that passed it on.
void pass_object_on(StepPlace const& at) {
  std::string passed;
  if (at.rank() > 0) passed = at.group.recv_object<std::string>(at.rank() - 1);
  passed += std::to_string(at.rank()) + ";";
  if (at.rank() + 1 < at.ranks()) at.group.send_object(passed, at.rank() + 1);
  std::string expected;
  for (int rank = 0; rank <= at.rank(); ++rank) expected += std::to_string(rank) + ";";
  ASSERT_EQ(passed, expected) << "step " << at.number;
}

constexpr RandomStep movements[] = {barrier, broadcast, all_gather, gather, scatter, all_to_all};
constexpr void (*objects[])(StepPlace const&) = {broadcast_object, gather_objects, scatter_objects, exchange,
                                                 pass_object_on};

}  // namespace

std::span<RandomStep const> movement_steps() { return movements; }
std::span<void (*const)(StepPlace const&)> object_steps() { return objects; }

}  // namespace crossrank::test
