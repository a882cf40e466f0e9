#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "transforms/fully_shard/unit_shards.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank {

using transforms::run_step;
using transforms::UnitShards;

struct FullyShardedModel::State {
  std::shared_ptr<TrainableModel> model;
  Groups groups;
  FullyShardTransformConfig config;
  ShardedMemory memory{};
  transforms::BlockPool pool{};
  std::deque<UnitShards> units{};  ///< as the model has them; the last one holds parameters of several units
  std::vector<bool> reduced{};     ///< units whose reduction has begun in this backward pass
  UnitShards* reducing = nullptr;
  TrainingObserver* observer = nullptr;

  void gather(std::size_t unit) {
    units[unit].start_gather();
    units[unit].finish_gather();
  }
  void release_all() {
    for (auto& unit : units) unit.release();
    pool.clear();
  }
  /// One reduction at a time, so that the full gradients of one unit at most wait for it.
  void reduce(std::size_t unit) {
    if (reducing != nullptr) reducing->finish_reduction();
    reducing = &units[unit];
    reduced[unit] = true;
    reducing->start_reduction();
  }
  void cancel() noexcept {
    reducing = nullptr;
    for (auto& unit : units) unit.cancel();
  }
  template <class Body>
  decltype(auto) run(char const* part, Body&& body) {
    try {
      return run_step(groups.shard, part, std::forward<Body>(body));
    } catch (std::exception const& e) {
      if (groups.replicate.connected()) transforms::abort_group(groups.replicate, e.what());
      cancel();
      throw;
    }
  }
};

FullyShardedModel::FullyShardedModel(std::shared_ptr<TrainableModel> model, Groups groups,
                                     FullyShardTransformConfig config)
    : state_(std::make_unique<State>()) {
  auto& state = *state_;
  state.model = std::move(model);
  state.groups = std::move(groups);
  state.config = std::move(config);
  std::map<Parameter const*, int> uses;
  auto const all = state.model->units();
  for (auto const& unit : all) {
    for (auto const& parameter : unit.parameters) ++uses[parameter.get()];
  }
  std::vector<std::shared_ptr<Parameter>> shared;
  for (auto const& unit : all) {
    std::vector<std::shared_ptr<Parameter>> own;
    for (auto const& parameter : unit.parameters) {
      bool const is_shared = uses[parameter.get()] > 1;
      if (is_shared && std::find(shared.begin(), shared.end(), parameter) != shared.end()) continue;
      (is_shared ? shared : own).push_back(parameter);
    }
    state.units.emplace_back(own, state.groups, state.config, state.memory, state.pool);
  }
  state.units.emplace_back(shared, state.groups, state.config, state.memory, state.pool);
  state.model->observe(this);
}

FullyShardedModel::~FullyShardedModel() {
  state_->model->observe(nullptr);
  state_->cancel();
}

std::vector<ModelUnit> FullyShardedModel::units() const { return state_->model->units(); }
std::vector<std::shared_ptr<Parameter>> FullyShardedModel::buffers() const { return state_->model->buffers(); }
void FullyShardedModel::observe(TrainingObserver* observer) { state_->observer = observer; }
ShardedMemory FullyShardedModel::memory() const noexcept { return state_->memory; }

NoSync FullyShardedModel::accumulation_context(bool is_last_microbatch) noexcept {
  return NoSync(sync_, is_last_microbatch || state_->config.sync_grad_accum);
}

void FullyShardedModel::abort(std::string_view why) noexcept {
  transforms::abort_group(state_->groups.shard, why);
  if (state_->groups.replicate.connected()) transforms::abort_group(state_->groups.replicate, why);
}

std::vector<Tensor> FullyShardedModel::forward(std::span<Tensor const> inputs) {
  auto& state = *state_;
  auto const& mixed = state.config.mixed_precision;
  return state.run("forward", [&] {
    state.release_all();  // values may have changed since
    state.gather(state.units.size() - 1);
    std::vector<Tensor> cast(inputs.begin(), inputs.end());
    for (auto& input : cast) {
      if (mixed.param_dtype && mixed.cast_forward_inputs && transforms::is_real(input.dtype()))
        input = transforms::as_dtype(input, *mixed.param_dtype);
    }
    auto outputs = state.model->forward(cast);
    state.pool.clear();
    for (auto& output : outputs) {
      if (mixed.output_dtype && transforms::is_real(output.dtype()))
        output = transforms::as_dtype(output, *mixed.output_dtype);
    }
    return outputs;
  });
}

void FullyShardedModel::backward(std::span<Tensor const> gradients) {
  auto& state = *state_;
  state.run("backward", [&] {
    state.reduced.assign(state.units.size(), false);
    state.units.back().prepare_gradients();
    state.model->backward(gradients);
    for (std::size_t unit = state.units.size(); sync_ && unit-- > 0;) {
      if (!state.reduced[unit]) state.reduce(unit);
    }
    if (!sync_) state.units.back().accumulate();
    if (state.reducing != nullptr) std::exchange(state.reducing, nullptr)->finish_reduction();
    state.release_all();
  });
}

/// The unit that is about to run is gathered, and the one behind it is fetched meanwhile.
void FullyShardedModel::before_unit(std::size_t unit, Pass pass) {
  auto& state = *state_;
  state.gather(unit);
  auto const own_units = state.units.size() - 1;
  if (pass == Pass::forward && unit + 1 < own_units) state.units[unit + 1].start_gather();
  if (pass == Pass::backward && unit > 0) state.units[unit - 1].start_gather();
  if (pass == Pass::backward) state.units[unit].prepare_gradients();
  if (pass == Pass::backward && unit == 0) state.pool.clear();  // no other unit comes
  if (state.observer != nullptr) state.observer->before_unit(unit, pass);
}

void FullyShardedModel::after_unit(std::size_t unit, Pass pass) {
  auto& state = *state_;
  if (state.observer != nullptr) state.observer->after_unit(unit, pass);
  auto const& reshard = state.config.reshard_after_forward;
  auto const* const always = std::get_if<bool>(&reshard);
  if (pass == Pass::forward) {
    if (always == nullptr || *always) state.units[unit].release(always == nullptr);
    return;
  }
  state.units[unit].release();
  if (sync_) return state.reduce(unit);
  state.units[unit].accumulate();
}

void FullyShardedModel::gradient_ready(Parameter& parameter) {
  for (auto& unit : state_->units) {
    if (unit.mark_used(parameter)) break;
  }
  if (state_->observer != nullptr) state_->observer->gradient_ready(parameter);
}

std::vector<TrainedTensor> FullyShardedModel::trained_tensors() {
  std::vector<TrainedTensor> trained;
  state_->run("trained_tensors", [&] { state_->release_all(); });
  for (auto const& unit : state_->units) unit.add_trained(trained);
  return trained;
}

std::vector<TensorShard> FullyShardedModel::sharded_state_dict() {
  std::vector<TensorShard> shards;
  state_->run("sharded_state_dict", [&] { state_->release_all(); });
  for (auto const& unit : state_->units) unit.add_shards(shards);
  for (auto const& buffer : buffers())
    shards.push_back({.name = buffer->name, .value = buffer->value, .shape = buffer->value.shape()});
  return shards;
}

void FullyShardedModel::zero_grad() {
  for (auto& unit : state_->units) unit.drop_gradients();
}

double FullyShardedModel::sum_over_shards(double local) { return state_->groups.shard.all_reduce_value(local); }

void FullyShardedModel::for_each_parameter(std::function<void(std::string const&, Tensor const&)> const& use) {
  state_->run("for_each_parameter", [&] {
    state_->release_all();
    for (auto& unit : state_->units) {
      unit.start_gather(true);
      unit.finish_gather();
      unit.visit(use);
      unit.release();
    }
    state_->pool.clear();
  });
}

void FullyShardedModel::load_parameters(std::function<Tensor(std::string const&)> const& load) {
  state_->run("load_parameters", [&] {
    state_->release_all();
    for (auto& unit : state_->units) unit.load(load);
  });
}

FullyShardTransform::FullyShardTransform(FullyShardTransformConfig config, JobCollective collective, Device device)
    : BaseDistributedTransform(config.common, std::move(collective), device), config_(std::move(config)) {}

std::shared_ptr<TrainableModel> FullyShardTransform::apply(std::shared_ptr<TrainableModel> model) {
  auto const& job = collective();
  if (job.dp_world_size() == 1) return model;
  auto const refuse = [&](std::string message, std::string expected, std::string got) {
    throw UsageError({.operation = "FullyShardTransform.apply",
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .rank = job.rank(),
                      .world_size = job.world_size()});
  };
  if (job.mesh() == nullptr) refuse("the job has no mesh", "a MeshCollective", "none");
  if (device() != Device::cpu() && !config_.offload.cpu_offload)
    refuse("the optimizers compute on the CPU, so a model on a GPU needs offload.cpu_offload", "true", "false");
  require_parameters(*model, "FullyShardTransform.apply");
  FullyShardedModel::Groups groups;
  auto const& mesh = *job.mesh();
  groups.shard = (config_.use_hybrid_sharding ? mesh["dp_shard"] : job.dp_world()).split_by(0);
  if (config_.use_hybrid_sharding && mesh["dp_replicate"].world_size() > 1)
    groups.replicate = mesh["dp_replicate"].split_by(0);
  if (auto const* const ranks = std::get_if<int>(&config_.reshard_after_forward)) {
    int const size = groups.shard.world_size();
    if (*ranks < 1 || size % *ranks != 0) {
      refuse("reshard_after_forward does not divide the sharding group", "a divisor of " + std::to_string(size),
             std::to_string(*ranks));
    }
    groups.smaller = groups.shard.split_by(groups.shard.rank() / *ranks);
  }
  transforms::require_same_parameters(job.dp_world(), model->parameters(), "FullyShardTransform.apply");
  return std::make_shared<FullyShardedModel>(std::move(model), std::move(groups), config_);
}

}  // namespace crossrank
