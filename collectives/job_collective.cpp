#include <crossrank/mesh.hpp>

#include <cstring>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/fake/fake_transport.hpp"
#include "collectives/job_state.hpp"
#include "lib/core/copy_memory.hpp"

namespace crossrank {

Collective const& JobCollective::world() const noexcept { return state_->world; }
Mesh const* JobCollective::mesh() const noexcept { return state_->mesh ? &*state_->mesh : nullptr; }
int JobCollective::rank() const { return state_->world.rank(); }
int JobCollective::world_size() const { return state_->world.world_size(); }
int JobCollective::local_rank() const noexcept { return state_->local_rank; }
int JobCollective::local_world_size() const noexcept { return state_->local_world_size; }
bool JobCollective::is_master() const { return rank() == 0; }
bool JobCollective::is_local_master() const noexcept { return state_->local_rank == 0; }
int JobCollective::dp_rank() const { return state_->dp.rank(); }
int JobCollective::dp_world_size() const { return state_->dp.world_size(); }
int JobCollective::tp_rank() const { return state_->tp.rank(); }
int JobCollective::tp_world_size() const { return state_->tp.world_size(); }
Collective const& JobCollective::local() const noexcept { return state_->local; }
Collective const& JobCollective::tp_world() const noexcept { return state_->tp; }
Collective const& JobCollective::dp_world() const noexcept { return state_->dp; }
Device JobCollective::default_device() const noexcept { return state_->device; }
std::shared_ptr<void> JobCollective::process_group() const { return state_->world.transport()->native_group(); }

void JobCollective::barrier() const { state_->world.barrier(); }
void JobCollective::all_reduce(Tensor& tensor, ReduceOp op) const { state_->world.all_reduce(tensor, op); }
void JobCollective::all_gather(Tensor& out, Tensor const& in) const { state_->world.all_gather(out, in); }
void JobCollective::broadcast(Tensor& tensor, Root root) const { state_->world.broadcast(tensor, root); }

void JobCollective::all_gather_to_list(std::span<Tensor> outs, Tensor const& in) const {
  auto const refuse = [&](std::string message, std::string expected, std::string got) {
    throw UsageError({.operation = "all_gather_to_list",
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .group = state_->world.name(),
                      .rank = rank(),
                      .world_size = world_size()});
  };
  if (outs.size() != static_cast<std::size_t>(world_size()))
    refuse("there is not one tensor for each rank", std::to_string(world_size()), std::to_string(outs.size()));
  for (auto const& out : outs) {
    if (!out.defined() || out.dtype() != in.dtype() || out.shape() != in.shape())
      refuse("a result does not fit", to_string(in), to_string(out));
  }
  auto joined = Tensor::empty({world_size(), in.numel()}, in.dtype());
  state_->world.all_gather(joined, in);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    auto const part = joined.narrow(0, static_cast<std::int64_t>(i), 1).bytes();
    if (!part.empty()) copy_memory(outs[i].mutable_bytes().data(), part.data(), part.size());
  }
}

void JobCollective::close() const { state_->world.close(); }

FakeCollective::FakeCollective(Device device) : JobCollective(std::make_shared<State>()) {
  state_->world = make_collective(std::make_shared<fake::FakeTransport>("world"), {});
  state_->local = state_->tp = state_->dp = state_->world;
  state_->device = device;
}

}  // namespace crossrank
