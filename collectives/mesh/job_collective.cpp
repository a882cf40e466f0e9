#include <crossrank/mesh.hpp>

#include <cstring>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/transport.hpp>

#include "collectives/core/own_part.hpp"
#include "collectives/fake/fake_transport.hpp"
#include "collectives/mesh/job_collective_state.hpp"
#include "collectives/spi/error_in.hpp"

namespace crossrank {

JobCollective::JobCollective(std::shared_ptr<State> state) : Collective(state->world), state_(std::move(state)) {}
JobCollective JobCollective::of(std::shared_ptr<State> state) { return JobCollective(std::move(state)); }

Collective const& JobCollective::world() const noexcept { return state_->world; }
Mesh const* JobCollective::mesh() const noexcept { return state_->mesh ? &*state_->mesh : nullptr; }
int JobCollective::dp_rank() const { return state_->dp.rank(); }
int JobCollective::dp_world_size() const { return state_->dp.world_size(); }
int JobCollective::tp_rank() const { return tp_world().rank(); }
int JobCollective::tp_world_size() const { return tp_world().world_size(); }
JobCollective const& JobCollective::local() const noexcept { return state_->local ? *state_->local : *this; }
JobCollective const& JobCollective::tp_world() const noexcept { return state_->tp ? *state_->tp : *this; }
Collective const& JobCollective::dp_world() const noexcept { return state_->dp; }
Device JobCollective::default_device() const { return state_->device ? *state_->device : crossrank::default_device(); }
std::optional<ProcessGroup> JobCollective::process_group() const { return transport()->native_group(); }

void JobCollective::all_gather_to_list(std::span<Tensor> outs, Tensor const& in) const {
  auto const refuse = [&](std::string message, std::string expected, std::string got) {
    throw UsageError(error_in(*transport(), {.operation = "all_gather_to_list",
                                             .message = std::move(message),
                                             .expected = std::move(expected),
                                             .got = std::move(got)}));
  };
  if (std::ssize(outs) != world_size())
    refuse("expected one tensor per rank", std::to_string(world_size()), std::to_string(outs.size()));
  for (auto const& out : outs) {
    if (!out.defined() || out.dtype() != in.dtype() || out.shape() != in.shape())
      refuse("the shape or dtype of a result is wrong", to_string(in), to_string(out));
  }
  auto joined = allocate_result(*this, "all_gather_to_list", [&] {
    return Tensor::empty({world_size(), in.numel()}, in.dtype(), in.device());
  });
  all_gather(joined, in);
  for (std::size_t i = 0; i < outs.size(); ++i) {
    outs[i].copy_from(joined.narrow(0, static_cast<std::int64_t>(i), 1).reshape(in.shape()));
  }
}

void JobCollective::close() const { state_->world.close(); }

FakeCollective::FakeCollective(std::optional<Device> device)
    : JobCollective([device] {
        auto const world = make_collective(std::make_shared<fake::FakeTransport>("world"), {});
        auto const alone = [&] { return State{.world = world, .dp = world, .device = device}; };
        auto job = std::make_shared<State>(alone());
        job->local = JobCollective::of(std::make_shared<State>(alone()));
        job->tp = job->local;
        return job;
      }()) {}

}  // namespace crossrank
