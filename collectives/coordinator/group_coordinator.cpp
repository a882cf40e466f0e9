#include <crossrank/group.hpp>

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>

#include "collectives/coordinator/coordinator_state.hpp"
#include "collectives/core/group_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/core/with_operation_name.hpp"
#include "lib/core/at_rank.hpp"
#include "lib/core/no_destructor.hpp"

namespace crossrank {

ErrorInfo usage_in(Collective const& group, char const* operation, std::string message, std::string expected,
                   std::string got) {
  return detail::usage_in(*group.transport(), operation, std::move(message), std::move(expected), std::move(got));
}

int checked_rank(Collective const& group, int rank, char const* operation, char const* what) {
  if (rank >= 0 && rank < group.world_size()) return rank;
  throw UsageError(usage_in(group, operation, std::string(what) + " is not a rank of the group",
                            "0 to " + std::to_string(group.world_size() - 1), std::to_string(rank)));
}

namespace {

constexpr char const* creating = "GroupCoordinator.create";

/// Rejects lists in which a rank of the world is missing or listed twice, or that list an unknown rank.
void require_partition(Collective const& world, std::vector<std::vector<int>> const& groups) {
  auto listed = per_rank<int>(world.world_size());
  for (auto const& group : groups) {
    for (int const rank : group) ++at_rank(listed, checked_rank(world, rank, creating, "a listed rank"));
  }
  for (std::size_t rank = 0; rank < listed.size(); ++rank) {
    if (listed[rank] == 1) continue;
    throw UsageError(
        usage_in(world, creating,
                 "rank " + std::to_string(rank) + (listed[rank] == 0 ? " is not listed" : " is listed more than once"),
                 "each rank in exactly one list", std::to_string(listed[rank]) + " times"));
  }
}

/// The named groups of this process.
struct Registry {
  std::mutex mutex{};
  std::map<std::string, int, std::less<>> made{};
  std::map<std::string, std::weak_ptr<void>, std::less<>> groups{};
};

Registry& registry() {
  static NoDestructor<Registry> all;  // groups may outlive static objects
  return all.value;
}

/// Decides how the group moves tensors on GPUs, if all its ranks have one. Otherwise the first collective on such
/// tensors decides. Collective.
void agree_on_transport(Collective const& group, Device device) {
  if (group.world_size() == 1) return;  // its first collective, if there is one, waits for no other rank
  with_operation_name(creating, [&] {
    int const has_gpu = device.kind == Device::Kind::cpu ? 0 : 1;
    bool const all_have_one = group.all_reduce_value(has_gpu, ReduceOp::min) != 0;
    if (all_have_one) detail::NamedCalls(group, creating).prepare_device(device);
  });
}

}  // namespace

GroupCoordinator GroupCoordinator::create(Collective const& world, std::vector<std::vector<int>> const& groups,
                                          GroupOptions options) {
  require_open(world, creating);
  require_partition(world, groups);
  if (!options.backend.empty() && options.backend != world.backend()) {
    throw UnavailableError({.operation = creating,
                            .message = "a group uses the backend of its world",
                            .expected = std::string(world.backend()),
                            .got = options.backend,
                            .hint = "connect the world with that backend"});
  }
  auto state = std::make_shared<State>();
  state->cpu = world.split(groups, options.name);
  // Split the world, because ranks in a group of one take part too.
  state->device = options.device_communicator ? world.split(groups, options.name + "/device") : state->cpu;
  if (options.device_communicator) {
    state->tensor_device = default_device();
    agree_on_transport(state->device, state->tensor_device);
  }
  state->data_parallel = std::move(options.data_parallel);
  if (options.broadcaster && state->cpu.world_size() > 1)
    state->queue = MessageQueue::create(state->cpu, {.name = options.name + "/objects"});
  for (int const rank : state->cpu.ranks()) state->ranks.push_back(GlobalRank{rank});
  std::lock_guard const lock(registry().mutex);
  state->unique_name = options.name + ":" + std::to_string(registry().made[options.name]++);
  std::erase_if(registry().groups, [](auto const& group) { return group.second.expired(); });
  registry().groups[state->unique_name] = state;
  return GroupCoordinator(std::move(state));
}

GroupCoordinator GroupCoordinator::by_name(std::string_view unique_name) {
  std::lock_guard const lock(registry().mutex);
  auto const found = registry().groups.find(unique_name);
  auto state = found == registry().groups.end() ? nullptr : std::static_pointer_cast<State>(found->second.lock());
  if (state && !state->destroyed) return GroupCoordinator(std::move(state));
  throw UsageError({.operation = "GroupCoordinator.by_name",
                    .message = "this process has no group of that name now",
                    .resource = std::string(unique_name),
                    .hint = "give the name that `unique_name` returns, such as tp:0"});
}

GroupCoordinator::State& GroupCoordinator::state(char const* operation) const {
  if (!state_->destroyed.load(std::memory_order_relaxed)) return *state_;
  throw UsageError({.operation = operation,
                    .message = "the group has been destroyed",
                    .resource = state_->unique_name,
                    .hint = "create a new one with GroupCoordinator::create"});
}

Collective const& GroupCoordinator::cpu_group() const { return state("cpu_group").cpu; }
Collective const& GroupCoordinator::device_group() const { return state("device_group").device; }
Collective const& GroupCoordinator::dense(char const* operation) const { return state(operation).device; }
int GroupCoordinator::rank() const { return state("rank").cpu.rank(); }
int GroupCoordinator::world_size() const { return state("world_size").cpu.world_size(); }
int GroupCoordinator::local_rank() const { return state("local_rank").cpu.local_rank(); }
Device GroupCoordinator::device() const { return state("device").tensor_device; }
std::string const& GroupCoordinator::unique_name() const { return state("unique_name").unique_name; }
GlobalRank GroupCoordinator::global_rank() const { return GlobalRank{state("global_rank").cpu.global_rank()}; }
std::vector<GlobalRank> GroupCoordinator::ranks() const { return state("ranks").ranks; }
GlobalRank GroupCoordinator::first_rank() const { return state("first_rank").ranks.front(); }
GlobalRank GroupCoordinator::last_rank() const { return state("last_rank").ranks.back(); }

GlobalRank GroupCoordinator::next_rank() const {
  auto const& held = state("next_rank");
  return at_rank(held.ranks, (held.cpu.rank() + 1) % held.cpu.world_size());
}

GlobalRank GroupCoordinator::prev_rank() const {
  auto const& held = state("prev_rank");
  int const size = held.cpu.world_size();
  return at_rank(held.ranks, (held.cpu.rank() + size - 1) % size);
}

int GroupCoordinator::rank_in_group(GlobalRank rank) const {
  auto const& held = state("rank_in_group");
  auto const found = std::find(held.ranks.begin(), held.ranks.end(), rank);
  if (found != held.ranks.end()) return static_cast<int>(found - held.ranks.begin());
  throw UsageError(usage_in(held.cpu, "rank_in_group", "that rank of the job is not in the group", {},
                            std::to_string(static_cast<int>(rank))));
}

bool GroupCoordinator::is_first_rank() const { return state("is_first_rank").cpu.rank() == 0; }

bool GroupCoordinator::is_last_rank() const {
  auto const& group = state("is_last_rank").cpu;
  return group.rank() == group.world_size() - 1;
}

void GroupCoordinator::barrier() const { state("barrier").cpu.barrier(); }

namespace {

/// Makes a buffer of zero bytes for collectives of `group`.
Tensor new_buffer(Collective const& group, Device device, BufferDescription const& buffer) {
  if (device.kind != Device::Kind::cpu && group.world_size() > 1) {
    detail::NamedCalls const calls(group, "prepare_communication_buffer_for_model");
    if (auto memory = calls.make_buffer(device, dense_bytes(buffer.shape, buffer.dtype))) {
      auto tensor = spi::tensor_from_storage(std::move(memory), 0, buffer.shape, buffer.dtype);
      tensor.copy_from(Tensor::zeros(buffer.shape, buffer.dtype, device));
      return tensor;
    }
  }
  return Tensor::zeros(buffer.shape, buffer.dtype, device);
}

}  // namespace

void GroupCoordinator::prepare_communication_buffer_for_model(std::vector<BufferDescription> const& buffers) const {
  constexpr char const* operation = "prepare_communication_buffer_for_model";
  auto& held = state(operation);
  std::lock_guard const lock(held.buffers_mutex);
  for (auto const& buffer : buffers) {
    auto const& [name, shape, dtype] = buffer;
    auto const found = held.buffers.find(name);
    if (found == held.buffers.end()) {
      held.buffers.emplace(name, new_buffer(held.device, held.tensor_device, buffer));
    } else if (found->second.shape() != shape || found->second.dtype() != dtype) {
      auto info = usage_in(held.cpu, operation, "a different buffer of that name already exists",
                           to_string(found->second), std::string(name_of(dtype)) + " " + to_string(shape));
      info.resource = name;
      throw UsageError(std::move(info));
    }
  }
}

Tensor GroupCoordinator::communication_buffer(std::string_view name) const {
  auto& held = state("communication_buffer");
  std::lock_guard const lock(held.buffers_mutex);
  if (auto const found = held.buffers.find(name); found != held.buffers.end()) return found->second;
  auto info = usage_in(held.cpu, "communication_buffer", "no buffer of that name was prepared");
  info.resource = name;
  throw UsageError(std::move(info));
}

void GroupCoordinator::destroy() const {
  if (state_->destroyed.exchange(true, std::memory_order_relaxed)) return;
  if (state_->queue.connected()) state_->queue.close();
  state_->queue = MessageQueue();
  state_->device = Collective();
  state_->cpu = Collective();
}

}  // namespace crossrank
