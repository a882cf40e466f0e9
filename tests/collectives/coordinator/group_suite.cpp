#include "tests/collectives/coordinator/group_suite.hpp"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <crossrank/tensor/concat.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>
#include <crossrank/mesh.hpp>
#include <crossrank/spi/transport.hpp>

#include "lib/core/as_size.hpp"
#include "lib/core/at_rank.hpp"
#include "tests/collectives/coordinator/group_values.hpp"

namespace crossrank::test {
namespace {

using Sizes = std::vector<std::int64_t>;

/// Returns the input of rank r for the serial reference.
Tensor given(Shape const& shape, int rank) { return counting(shape, static_cast<float>(rank + 1)); }

Tensor summed(Shape const& shape, int ranks) { return counting(shape, static_cast<float>(ranks * (ranks + 1) / 2)); }

/// Returns a tensor with the results of `change` for its elements.
template <class Change>
Tensor changed(Tensor const& tensor, Change&& change) {
  auto out = on_host(tensor).clone();
  for (auto& value : out.as_mutable<float>()) value = change(value);
  return on_device(out);
}

/// An expert doubles its input and adds its rank.
Tensor expert(Tensor const& hidden, int rank) {
  return changed(hidden, [rank](float value) { return 2 * value + static_cast<float>(rank); });
}

/// Returns lists of rows of each rank: all different, some empty, those of vLLM's own tests, and all equal.
std::vector<Sizes> uneven_sizes(int ranks) {
  std::vector<Sizes> all(4);
  constexpr std::int64_t of_reference[] = {81, 20, 57, 52, 81, 5, 49, 49};
  for (int rank = 0; rank < ranks; ++rank) {
    all[0].push_back(2 + 3 * rank);
    all[1].push_back(rank % 2 == 0 ? 0 : 2 + 3 * rank);
    all[2].push_back(of_reference[rank % 8]);
    all[3].push_back(5);
  }
  return all;
}

void experts_match_the_serial_reference(GroupCoordinator const& group, std::vector<int> const& members,
                                        Collective const& world, bool sequence_parallel, bool explicit_sizes) {
  auto const mine = tokens_of(world.rank());
  std::vector<Tensor> all;
  Sizes sizes;
  for (int const rank : members) {
    all.push_back(tokens_of(rank));
    sizes.push_back(all.back().shape()[0]);
  }
  auto const extra = counting<std::int32_t>({mine.shape()[0]});
  auto const got = group.dispatch(
      mine, mine.clone(),
      {.is_sequence_parallel = sequence_parallel, .sizes = explicit_sizes ? sizes : Sizes{}, .extra_tensors = {extra}});
  EXPECT_TRUE(same(got.hidden_states, concat(all)));
  EXPECT_TRUE(same(got.router_logits, concat(all)));
  ASSERT_EQ(got.extra_tensors.size(), 1U);
  std::vector<Tensor> extras;
  for (auto const size : sizes) extras.push_back(counting<std::int32_t>({size}));
  EXPECT_TRUE(same(got.extra_tensors[0], concat(extras)));
  EXPECT_EQ(got.route.sizes(), sizes);
  auto const combined = group.combine(expert(got.hidden_states, world.rank()), got.route);
  // Serial reference: every member's expert processes these tokens, and the results are added.
  auto const expected = changed(mine, [&](float value) {
    float sum = 0;
    for (int const rank : members) sum += 2 * value + static_cast<float>(rank);
    return sum;
  });
  EXPECT_TRUE(same(combined, expected));
  EXPECT_TRUE(same(group.combine(expert(got.hidden_states, world.rank()), got.route, ReduceOrder::rank), expected));
}

/// Returns whether the ranks share memory: all are on one node, and the backend uses its memory.
bool share_memory(Collective const& world) {
  return world.world_size() == 1 ||
         (world.local_world_size() == world.world_size() && world.transport()->node_memory() != nullptr);
}

constexpr QueueOptions small_queue(int writer) { return {.writer_rank = writer, .chunk_bytes = 4096, .chunks = 2}; }

}  // namespace

void dense_operations_match_the_serial_reference(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  int const me = world.rank();
  auto const mine = [&](Shape const& shape) { return given(shape, me); };

  auto tensor = mine({8});
  EXPECT_TRUE(same(group.all_reduce(tensor), summed({8}, n)));
  EXPECT_TRUE(same(group.all_reduce_out_place(tensor, ReduceOp::max), given({8}, n - 1)));
  EXPECT_TRUE(same(group.all_reduce(tensor, ReduceOp::sum, ReduceOrder::rank), summed({8}, n)));
  EXPECT_TRUE(same(tensor, mine({8}))) << "the argument";
  group.all_reduce_in_place(tensor);
  EXPECT_TRUE(same(tensor, summed({8}, n)));
  std::vector<Shape> const shapes{{2 * n}, {3, 2 * n}, {2 * n, 4 * n, 6 * n}, {n, 2 * n, 3 * n, 4 * n}};
  for (auto const& shape : shapes) {
    auto const dims = static_cast<std::int64_t>(shape.size());
    for (std::int64_t dim = -dims; dim < dims; ++dim) {
      SCOPED_TRACE(to_string(shape) + " dim " + std::to_string(dim));
      std::vector<Tensor> all;
      for (int rank = 0; rank < n; ++rank) all.push_back(given(shape, rank));
      auto const joined = concat(all, {dim});
      auto const at = as_size(dim < 0 ? dim + dims : dim);
      EXPECT_TRUE(same(group.all_gather(mine(shape), {dim}), joined));
      int const dst = static_cast<int>(at) % n;
      auto const gathered = group.gather(mine(shape), {.dst = dst, .dim = dim});
      EXPECT_TRUE(same(gathered, me == dst ? joined : Tensor{}));
      if (shape[at] % n != 0) continue;
      auto const part = shape[at] / n;
      EXPECT_TRUE(same(group.reduce_scatter(mine(shape), {dim}), slice(summed(shape, n), {dim}, me * part, part)));
    }
  }
}

void uneven_operations_match_the_serial_reference(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  int const me = world.rank();
  for (auto const& sizes : uneven_sizes(n)) {
    std::vector<Tensor> all;
    for (int rank = 0; rank < n; ++rank) all.push_back(given({at_rank(sizes, rank), 4}, rank));
    auto const mine = at_rank(all, me);
    EXPECT_TRUE(same(group.all_gatherv(mine, sizes), concat(all)));
    EXPECT_TRUE(same(group.all_gatherv(mine), concat(all)));
    std::vector<Tensor> bytes;
    for (auto const size : sizes) bytes.push_back(counting<std::int8_t>({size, 3}));
    auto const own_bytes = at_rank(bytes, me);
    auto const without_elements = counting({own_bytes.shape()[0], 0});
    for (auto const& known : {sizes, Sizes{}}) {
      auto const list = group.all_gatherv(std::vector{own_bytes, without_elements, mine}, known);
      ASSERT_EQ(list.size(), 3U);
      EXPECT_TRUE(same(list[0], concat(bytes)));
      EXPECT_EQ(list[1].shape(), (Shape{concat(all).shape()[0], 0}));
      EXPECT_TRUE(same(list[2], concat(all)));
    }
    auto const mixed = group.all_gatherv(std::vector{on_host(mine), own_bytes}, sizes);
    EXPECT_TRUE(same(mixed.at(0), on_host(concat(all))));
    EXPECT_TRUE(same(mixed.at(1), concat(bytes)));
    auto const total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    auto const begin = std::accumulate(sizes.begin(), sizes.begin() + me, std::int64_t{0});
    for (std::int64_t const dim : {0, 1, 2}) {
      Shape const shape = Shape{2, 3, 2}.with(as_size(dim), total);
      EXPECT_TRUE(same(group.reduce_scatterv(given(shape, me), {dim}, sizes),
                       slice(summed(shape, n), {dim}, begin, at_rank(sizes, me))));
    }
  }
}

void tensors_reach_their_receivers(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  int const me = world.rank();
  for (int src = 0; src < n; ++src) {
    auto tensor = counting({5}, 1.F, static_cast<float>(me));
    auto const back = group.broadcast(tensor, {src});
    EXPECT_EQ(back.data(), tensor.data());
    EXPECT_TRUE(same(tensor, counting({5}, 1.F, static_cast<float>(src))));
  }
  for (int dst = 0; dst < n; ++dst) {
    auto const gathered = group.gather(given({3}, me), {.dst = dst});
    EXPECT_EQ(gathered.defined(), me == dst);
  }
  group.send(given({64}, me));
  EXPECT_TRUE(same(group.recv({64}, Dtype::f32), given({64}, (me + n - 1) % n)));
  group.send(given({3, 2}, me), (me + n - 1) % n);
  EXPECT_TRUE(same(group.recv({3, 2}, Dtype::f32, (me + 1) % n), given({3, 2}, (me + 1) % n)));
  group.barrier();
}

/// The groups of neighbours make different numbers of calls, and the ranks are in groups of two kinds at once.
void pairs_of_ranks_do_not_interfere(Collective const& world) {
  auto const rows = made(world, pairs(world.world_size(), 1), {.name = "tp"});
  auto const columns = made(world, pairs(world.world_size(), 2), {.name = "pp"});
  bool const in_first_row = world.rank() % 4 < 2;
  auto reduced = rows.all_reduce(counting({16, 64}, 0.F, 1.F));
  if (in_first_row) reduced = rows.all_reduce(reduced);
  EXPECT_TRUE(same(reduced, counting({16, 64}, 0.F, in_first_row ? 4.F : 2.F)));
  // Down the pipeline of two stages.
  auto const stage = static_cast<float>(world.rank() % 2 + 1);
  if (columns.is_first_rank()) columns.send(counting({1024}, 0.F, stage));
  if (columns.is_last_rank()) {
    EXPECT_TRUE(same(columns.recv({1024}, Dtype::f32), counting({1024}, 0.F, stage)));
  }
  world.barrier();
}

void experts_use_sequence_parallelism(Collective const& world) {
  if (world.world_size() == 1) {
    auto const sent = whole(world).dispatch(tokens_of(0), tokens_of(0), {.is_sequence_parallel = true});
    EXPECT_TRUE(same(sent.hidden_states, tokens_of(0)));
    return;
  }
  auto const group = whole(world, {.name = "ep"});
  auto const members = all_ranks(world.world_size());
  for (bool const explicit_sizes : {true, false})
    experts_match_the_serial_reference(group, members, world, true, explicit_sizes);
  world.barrier();
}

void experts_use_their_data_parallel_group(Collective const& world) {
  int const tp = 2;
  Mesh const mesh(world, {{"dp", world.world_size() / tp}, {"tp", tp}});
  auto const dp = made(world, mesh.groups("dp"), {.name = "dp"});
  auto const ep = whole(world, {.name = "ep", .data_parallel = dp.device_group()});
  std::vector<int> column;
  std::vector<int> all;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    all.push_back(rank);
    if (rank % tp == world.rank() % tp) column.push_back(rank);
  }
  experts_match_the_serial_reference(ep, column, world, false, true);
  experts_match_the_serial_reference(ep, all, world, true, true);
  world.barrier();
}

void experts_without_a_data_parallel_group_stay_local(Collective const& world) {
  auto const group = whole(world);
  auto const tokens = tokens_of(world.rank());
  auto const logits = counting({1 + world.rank()});
  auto const extra = counting({2});
  auto const sent = group.dispatch(tokens, logits, {.extra_tensors = {extra}});
  EXPECT_EQ(sent.hidden_states.data(), tokens.data());
  EXPECT_EQ(sent.router_logits.data(), logits.data());
  ASSERT_EQ(sent.extra_tensors.size(), 1U);
  EXPECT_EQ(sent.extra_tensors[0].data(), extra.data());
  EXPECT_TRUE(sent.route.sizes().empty());
  auto const answer = counting({4, 4});
  EXPECT_EQ(group.combine(answer, sent.route).data(), answer.data());
  world.barrier();
}

void objects_are_sent_by_queue(Collective const& world) {
  auto const group = whole(world, {.name = "queued", .broadcaster = true});
  for (int i = 0; i < 20; ++i) {
    for (int src = 0; src < world.world_size(); ++src) {
      EXPECT_EQ(group.broadcast_object(world.rank() * 100 + i, {src}), src * 100 + i);
    }
    EXPECT_EQ(group.broadcast_object(world.rank() == 0 ? Json() : Json("not null")), Json());
  }
  EXPECT_THROW(static_cast<void>(group.broadcast_object(1, {-1})), UsageError);
  world.barrier();
  group.destroy();
  EXPECT_THROW(static_cast<void>(group.broadcast_object(1)), UsageError);
  world.barrier();
}

void a_queue_reaches_all_ranks(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  auto const queue = group.create_mq_broadcaster(small_queue(n - 1));
  EXPECT_EQ(queue.is_writer(), world.rank() == n - 1);
  auto const text = encode_object(std::string("hello"));
  if (queue.is_writer()) {
    queue.enqueue_bytes(text);
  } else {
    EXPECT_EQ(queue.dequeue_bytes(), text);
  }
  world.barrier();
}

/// Uses queues through shared memory. Ranks without it get an error each, and the group stays usable.
void queues_of_all_ranks_reach_one(Collective const& world) {
  auto const group = whole(world);
  int const n = world.world_size();
  auto const make = [&] { return group.create_single_reader_mq_broadcasters(n - 1, small_queue(0)); };
  if (share_memory(world)) {
    auto const many = make();
    many.own.enqueue_bytes(encode_object(world.rank()));
    EXPECT_EQ(many.from.size(), world.rank() == n - 1 ? as_size(n) : 0U);
    for (std::size_t rank = 0; rank < many.from.size(); ++rank)
      EXPECT_EQ(decode_object<int>(many.from[rank].dequeue_bytes().value()), static_cast<int>(rank));
  } else {
    try {
      static_cast<void>(make());
      ADD_FAILURE() << "expected an error for queues between nodes";
    } catch (UnavailableError const& e) {
      EXPECT_TRUE(e.group_usable()) << e.what();
    } catch (RemoteError const& e) {
      EXPECT_EQ(e.remote_type(), "crossrank::UnavailableError") << e.what();
    }
  }
  world.barrier();
}

/// Rank 0 of the world writes and all others read. The last of them gets the handle and relays it.
void queues_take_a_writer_from_outside(Collective const& world) {
  int const n = world.world_size();
  std::vector<int> readers(as_size(n - 1));
  std::iota(readers.begin(), readers.end(), 1);
  auto const group = GroupCoordinator::create(world, {{0}, readers});
  if (!share_memory(world)) return;  // a handle is valid only on its node
  if (world.rank() == 0) {
    auto const writer = MessageQueue::create_writer(world, n - 1, small_queue(0));
    world.send_object(writer.handle(), n - 1);
    writer.enqueue_bytes(encode_object(7));
    world.barrier();
  } else {
    auto const handle = world.rank() == n - 1 ? world.recv_object<std::vector<std::byte>>(0) : std::vector<std::byte>{};
    auto const queue = group.attach_mq_broadcaster(handle, {n - 2});
    EXPECT_EQ(decode_object<int>(queue.dequeue_bytes().value()), 7);
    world.barrier();
  }
}

/// The device follows from the rank on the node, whatever the group. The rank in the group is another number.
void ranks_keep_their_device_in_every_group(Collective const& world) {
  std::vector<std::vector<int>> lists(2);
  for (int rank = world.world_size() - 1; rank >= 0; --rank) lists[as_size(rank % 2)].push_back(rank);
  if (lists[1].empty()) lists.pop_back();
  auto const group = made(world, lists);
  auto const& mine = lists[as_size(world.rank() % 2)];
  EXPECT_EQ(group.local_rank(), world.local_rank());
  EXPECT_EQ(group.device(), CaseDevice::current());
  EXPECT_EQ(mine[as_size(group.rank_in_group())], world.rank());
  EXPECT_EQ(group.rank_in_group(), group.rank());
  EXPECT_EQ(group.rank_in_group(group.global_rank()), group.rank());
  world.barrier();
}

namespace {

constexpr bool on_devices = true;

constexpr GroupCase cases[] = {
    {"dense_operations_match_the_serial_reference", dense_operations_match_the_serial_reference, 1, on_devices},
    {"uneven_operations_match_the_serial_reference", uneven_operations_match_the_serial_reference, 1, on_devices},
    {"tensors_reach_their_receivers", tensors_reach_their_receivers, 1, on_devices},
    {"pairs_of_ranks_do_not_interfere", pairs_of_ranks_do_not_interfere, 4, on_devices},
    {"experts_use_sequence_parallelism", experts_use_sequence_parallelism, 1, on_devices},
    {"experts_use_their_data_parallel_group", experts_use_their_data_parallel_group, 4, on_devices},
    {"experts_without_a_data_parallel_group_stay_local", experts_without_a_data_parallel_group_stay_local, 1,
     on_devices},
    {"dictionaries_arrive", dictionaries_arrive, 1, on_devices},
    {"dictionaries_follow_the_all_gather_rule", dictionaries_follow_the_all_gather_rule, 4, on_devices},
    {"objects_are_sent_by_queue", objects_are_sent_by_queue},
    {"a_queue_reaches_all_ranks", a_queue_reaches_all_ranks},
    {"queues_of_all_ranks_reach_one", queues_of_all_ranks_reach_one},
    {"queues_take_a_writer_from_outside", queues_take_a_writer_from_outside, 3},
    {"ranks_keep_their_device_in_every_group", ranks_keep_their_device_in_every_group, 1, on_devices},
};

}  // namespace

std::span<GroupCase const> group_suite() { return cases; }

std::vector<GroupParameter> group_parameters(std::vector<int> const& sizes) {
  std::vector<GroupParameter> all;
  for (auto const& test : cases) {
    for (int const ranks : sizes) {
      if (ranks >= test.min_ranks) all.push_back({test, ranks});
    }
  }
  return all;
}

std::vector<GroupParameter> group_device_parameters(std::vector<int> const& sizes) {
  auto all = group_parameters(sizes);
  std::erase_if(all, [](GroupParameter const& one) { return !one.test.on_devices; });
  return all;
}

std::string group_parameter_name(GroupParameter const& parameter) {
  return std::string(parameter.test.name) + "_with_" + std::to_string(parameter.ranks);
}

}  // namespace crossrank::test
