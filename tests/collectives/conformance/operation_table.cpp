#include "tests/collectives/conformance/operation_table.hpp"

#include <algorithm>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "lib/core/as_size.hpp"
#include "tests/collectives/conformance/test_bytes.hpp"
#include "tests/collectives/conformance/recording_transport.hpp"
#include "tests/support/error_of.hpp"

namespace crossrank::test {
namespace {

constexpr std::int64_t rows = 9'000;

/// Returns a tensor whose elements on rank r are r + 1, so that sums and order both show.
Tensor filled(Collective const& world, std::int64_t count) {
  auto tensor = Tensor::empty({count}, Dtype::f32);
  std::ranges::fill(tensor.as_mutable<float>(), static_cast<float>(world.rank() + 1));
  return tensor;
}

Tensor buffer(std::int64_t count) { return Tensor::zeros({count}, Dtype::f32); }

void expect_all(Tensor const& tensor, int value, char const* operation) {
  auto const values = tensor.as<float>();
  EXPECT_TRUE(std::ranges::all_of(values, [&](float v) { return v == static_cast<float>(value); })) << operation;
}

/// Expects parts of `rows` elements, where that of rank r is full of r + 1.
void expect_parts(Tensor const& tensor, char const* operation) {
  auto const values = tensor.as<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(i / as_size(rows) + 1)) << operation;
}

struct OperationCase {
  char const* name;
  std::function<void(Collective&)> run;
};

int sum_of_ranks(Collective const& world) { return world.world_size() * (world.world_size() + 1) / 2; }

std::vector<std::int64_t> equal_rows(Collective const& world) {
  return std::vector<std::int64_t>(as_size(world.world_size()), rows);
}

void add_moves(std::vector<OperationCase>& operations) {
  operations.push_back({"barrier", [](Collective& world) { world.barrier(); }});
  operations.push_back({"broadcast", [](Collective& world) {
                          auto tensor = filled(world, rows);
                          world.broadcast(tensor);
                          expect_all(tensor, 1, "broadcast");
                        }});
  operations.push_back({"all_gather", [](Collective& world) {
                          auto out = buffer(rows * world.world_size());
                          world.all_gather(out, filled(world, rows));
                          expect_parts(out, "all_gather");
                        }});
  operations.push_back({"all_gatherv", [](Collective& world) {
                          auto out = buffer(rows * world.world_size());
                          world.all_gatherv(out, filled(world, rows), {.rows = equal_rows(world)});
                          expect_parts(out, "all_gatherv");
                        }});
  auto const gather = [](bool v) {
    return [v](Collective& world) {
      auto out = world.is_master() ? buffer(rows * world.world_size()) : Tensor();
      auto const mine = filled(world, rows);
      auto const all = equal_rows(world);
      v ? world.gatherv(out, mine, {.rows = all}) : world.gather(out, mine);
      if (world.is_master()) expect_parts(out, "gather");
    };
  };
  operations.push_back({"gather", gather(false)});
  operations.push_back({"gatherv", gather(true)});
  auto const scatter = [](bool v) {
    return [v](Collective& world) {
      auto out = buffer(rows);
      auto const in = world.is_master() ? filled(world, rows * world.world_size()) : Tensor();
      auto const all = equal_rows(world);
      v ? world.scatterv(out, in, {.rows = all}) : world.scatter(out, in);
      expect_all(out, 1, "scatter");
    };
  };
  operations.push_back({"scatter", scatter(false)});
  operations.push_back({"scatterv", scatter(true)});
  auto const exchange = [](bool v) {
    return [v](Collective& world) {
      auto out = buffer(rows * world.world_size());
      auto const in = filled(world, rows * world.world_size());
      auto const all = equal_rows(world);
      v ? world.all_to_allv(out, in, {.send = all, .receive = all}) : world.all_to_all(out, in);
      expect_parts(out, "all_to_all");
    };
  };
  operations.push_back({"all_to_all", exchange(false)});
  operations.push_back({"all_to_allv", exchange(true)});
}

void add_reductions(std::vector<OperationCase>& operations) {
  operations.push_back({"all_reduce", [](Collective& world) {
                          auto tensor = filled(world, rows);
                          world.all_reduce(tensor);
                          expect_all(tensor, sum_of_ranks(world), "all_reduce");
                        }});
  operations.push_back({"reduce", [](Collective& world) {
                          auto tensor = filled(world, rows);
                          world.reduce(tensor);
                          expect_all(tensor, world.is_master() ? sum_of_ranks(world) : world.rank() + 1, "reduce");
                        }});
  auto const scattered = [](bool v) {
    return [v](Collective& world) {
      auto out = buffer(rows);
      auto const in = filled(world, rows * world.world_size());
      auto const all = equal_rows(world);
      v ? world.reduce_scatterv(out, in, {.rows = all}) : world.reduce_scatter(out, in);
      expect_all(out, sum_of_ranks(world), "reduce_scatter");
    };
  };
  operations.push_back({"reduce_scatter", scattered(false)});
  operations.push_back({"reduce_scatterv", scattered(true)});
}

void add_messages_and_groups(std::vector<OperationCase>& operations) {
  auto const message = [](Collective& world) {
    // From the last rank to the first. A single rank sends to itself.
    int const last = world.world_size() - 1;
    if (world.rank() == last) world.send(filled(world, rows), 0, {4});
    if (world.rank() != 0) return;
    auto in = buffer(rows);
    world.recv(in, last, {4});
    expect_all(in, last + 1, "recv");
  };
  operations.push_back({"recv_any", [](Collective& world) {
                          int const last = world.world_size() - 1;
                          if (world.rank() == last) world.send(filled(world, rows), 0);
                          if (world.rank() != 0) return;
                          auto in = buffer(rows);
                          EXPECT_EQ(world.recv_any(in), last);
                          expect_all(in, last + 1, "recv_any");
                        }});
  operations.push_back({"send", message});
  operations.push_back({"recv", message});
  operations.push_back({"sendrecv", [](Collective& world) {
                          auto in = buffer(rows);
                          int const n = world.world_size();
                          int const src = (world.rank() + n - 1) % n;
                          world.sendrecv(in, filled(world, rows), {.dst = (world.rank() + 1) % n, .src = src});
                          expect_all(in, src + 1, "sendrecv");
                        }});
  operations.push_back({"split", [](Collective& world) {
                          std::vector<int> backwards(as_size(world.world_size()));
                          std::iota(backwards.rbegin(), backwards.rend(), 0);
                          EXPECT_EQ(world.split({backwards}).rank(), world.world_size() - 1 - world.rank());
                        }});
  operations.push_back(
      {"split_by", [](Collective& world) { EXPECT_EQ(world.split_by(world.rank()).world_size(), 1); }});
  operations.push_back({"abort", [](Collective& world) {
                          auto const group = world.split_by(0);
                          group.abort("enough");
                          EXPECT_EQ(error_of<PeerLostError>([&] { group.barrier(); }).group_usable, false);
                        }});
  operations.push_back({"close", [](Collective& world) { world.close(); }});
}

std::string trimmed(std::string text) {
  std::erase(text, '`');
  auto const first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string> parts_of(std::string const& line, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(line);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(trimmed(part));
  return parts;
}

}  // namespace

OpSupport measure_op_support(Collective const& world) {
  auto const watched = std::make_shared<RecordingTransport>(world.transport());
  auto watched_world = make_collective(watched, world.timeout_policy());
  std::vector<OperationCase> operations;
  add_moves(operations);
  add_reductions(operations);
  add_messages_and_groups(operations);
  OpSupport support;
  for (auto const& operation : operations) {
    watched->forget();
    operation.run(watched_world);
    support[operation.name] = watched->unsupported_ops().empty() ? "native" : "composed";
  }
  return support;
}

OpSupport documented_ways(std::string const& backend) {
  std::ifstream document(CROSSRANK_BACKENDS_DOCUMENT);
  EXPECT_TRUE(document.is_open()) << CROSSRANK_BACKENDS_DOCUMENT;
  std::size_t column = 0;
  OpSupport support;
  for (std::string line; std::getline(document, line);) {
    auto const cells = parts_of(line, '|');
    if (column == 0) {
      if (cells.size() < 2 || cells[1] != "operations") continue;
      column = as_size(std::find(cells.begin(), cells.end(), backend) - cells.begin());
      if (column == cells.size()) break;
      std::getline(document, line);  // the separator below the header
      continue;
    }
    if (cells.size() <= column) break;
    for (auto const& operation : parts_of(cells[1], ',')) {
      EXPECT_TRUE(support.emplace(operation, cells[column]).second)
          << operation << " appears twice in docs/BACKENDS.md";
    }
  }
  return support;
}

}  // namespace crossrank::test
