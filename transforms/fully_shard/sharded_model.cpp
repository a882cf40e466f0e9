#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/transforms/fully_shard.hpp>

#include "transforms/fully_shard/backward_budget.hpp"
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
  std::unordered_map<Parameter const*, std::pair<std::size_t, std::size_t>> places{};  ///< unit, and number in it
  std::vector<bool> reduced{};  ///< units whose reduction has begun in this backward pass
  std::vector<int> runs{};      ///< how often each unit ran in the last forward pass
  std::vector<int> left{};      ///< runs that the backward pass has not had yet
  transforms::BackwardBudget budget{};
  bool is_backward = false;            ///< whether the last pass that began is a backward pass
  bool is_limited = false;             ///< whether the budget limits this backward pass
  std::vector<std::size_t> running{};  ///< units inside each other, whose backward pass has begun and not ended
  std::size_t nesting = 0;             ///< most units around another one so far
  std::vector<Dtype> output_dtypes{};  ///< in which the engine gave the outputs of the last forward pass
  UnitShards* reducing = nullptr;
  TrainingObserver* observer = nullptr;

  void gather(std::size_t unit) {
    units[unit].start_gather();
    units[unit].finish_gather();
  }
  /// Returns the number of units of the model, without the last one of this class.
  [[nodiscard]] std::size_t own_units() const noexcept { return units.size() - 1; }
  void begin_forward() {
    release_all();  // values may have changed since
    is_backward = false;
    runs.assign(units.size(), 0);
    gather(units.size() - 1);
  }
  void begin_backward(bool reduces) {
    is_backward = true;
    reduced.assign(units.size(), false);
    left = runs;
    running.clear();
    nesting = 0;
    auto const* const reshards = std::get_if<bool>(&config.reshard_after_forward);
    // Otherwise all parameters or all full gradients are there at the end of the pass.
    is_limited = (reshards == nullptr || *reshards) && reduces && memory.full_gradients == 0;
    if (!is_limited) return budget.lift();
    limit_backward();
  }
  /// Limits what is in flight, knowing which units run around the others.
  void limit_backward() {
    std::vector<transforms::BackwardBudget::Unit> limits;
    std::size_t always = 0;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      auto const& sizes = units[unit].sizes();
      auto const full = sizes.gathered + sizes.full_gradients;
      bool const has_gradients = units[unit].has_gradients();
      bool const is_outer = std::find(running.begin(), running.end(), unit) != running.end();
      if (unit == own_units() || is_outer) {
        always += full + (has_gradients ? sizes.gradients : 0);
      } else {
        limits.push_back({.running = full, .reduced = sizes.gradients, .has_gradients = has_gradients});
      }
    }
    budget.limit(limits, always);
  }
  /// Gathers the unit that is about to run, and fetches the one behind it meanwhile. In a backward pass an engine may
  /// run a unit forward again for its activations. The one behind it has run backward by then, or will be gathered.
  void enter_forward(std::size_t unit) {
    if (is_backward) return gather_in_backward(unit, 0);
    ++runs[unit];
    gather(unit);
    if (unit + 1 < own_units()) units[unit + 1].start_gather();
  }
  /// Returns whether a unit that has run forward gives its parameters back. One whose backward pass has begun, or comes
  /// next, keeps them.
  [[nodiscard]] bool reshards(std::size_t unit) const {
    if (auto const* const always = std::get_if<bool>(&config.reshard_after_forward); always != nullptr && !*always)
      return false;
    if (!is_backward) return true;
    bool const has_begun = std::find(running.begin(), running.end(), unit) != running.end();
    return !has_begun && unit + 1 < own_units() && left[unit + 1] > 0;
  }
  void enter_backward(std::size_t unit) {
    if (is_limited && running.size() > nesting) {
      nesting = running.size();
      limit_backward();
    }
    running.push_back(unit);
    prepare_backward(unit);
    if (unit > 0) prefetch(unit - 1);
    pool.keep_at_most(unit > 0 ? space() : 0);  // no other unit comes after the first
  }
  /// Returns the bytes that the backward pass may take beyond those that it uses.
  [[nodiscard]] std::size_t space() const noexcept {
    return budget.left(memory.gathered + memory.full_gradients + memory.gradients);
  }
  void finish_reduction() {
    if (reducing != nullptr) std::exchange(reducing, nullptr)->finish_reduction();
    pool.keep_at_most(space());
  }
  /// Gathers a unit once there is space for it and `besides`.
  void gather_in_backward(std::size_t unit, std::size_t besides) {
    auto const needed = (units[unit].has_parameters() ? 0 : units[unit].sizes().gathered) + besides;
    if (space() < needed) finish_reduction();
    gather(unit);
  }
  /// Gathers a unit and makes its full gradients.
  void prepare_backward(std::size_t unit) {
    if (reducing == &units[unit]) finish_reduction();  // it runs more often than in the last forward pass
    gather_in_backward(unit, units[unit].sizes().full_gradients);
    units[unit].prepare_gradients();
  }
  /// Fetches the parameters of a unit ahead, if there is space for them and `besides`.
  void prefetch(std::size_t unit, std::size_t besides = 0) {
    if (!units[unit].has_parameters() && space() >= units[unit].sizes().gathered + besides) units[unit].start_gather();
  }
  void release_all() {
    for (auto& unit : units) unit.release();
    pool.clear();
  }
  /// Returns the bytes that the reduction of a unit takes besides its full gradients.
  [[nodiscard]] std::size_t growth_in_reduction(std::size_t unit) const {
    auto const& sizes = units[unit].sizes();
    return std::max(sizes.in_reduction, sizes.full_gradients) - sizes.full_gradients + sizes.gradients;
  }
  /// One reduction at a time, so that the full gradients of one unit at most wait for it.
  void reduce(std::size_t unit) {
    finish_reduction();
    pool.keep_at_most(space() - std::min(space(), growth_in_reduction(unit)));
    reducing = &units[unit];
    reduced[unit] = true;
    reducing->start_reduction();
  }
  /// Reduces a unit that has run. The parameters of the next one go first, because it waits for them.
  void end_backward(std::size_t unit) {
    finish_reduction();
    if (unit > 0) prefetch(unit - 1, growth_in_reduction(unit));
    reduce(unit);
  }
  void cancel() noexcept {
    reducing = nullptr;
    for (auto& unit : units) unit.cancel();
  }
  /// Ends the groups besides the sharding group, whose members may be ranks of other sharding groups.
  void abort_others(std::string_view why) noexcept {
    for (auto const* const group : {&groups.replicate, &groups.smaller}) {
      if (group->connected()) group->abort(why);
    }
  }
  template <class Body>
  decltype(auto) run(char const* part, Body&& body) {
    try {
      return run_step(groups.shard, part, std::forward<Body>(body));
    } catch (std::exception const& e) {
      abort_others(e.what());
      cancel();
      throw;
    } catch (...) {
      abort_others("an exception of an unknown type");
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
      auto& list = is_shared ? shared : own;
      std::pair const place(is_shared ? all.size() : state.units.size(), list.size());
      if (state.places.try_emplace(parameter.get(), place).second) list.push_back(parameter);
    }
    ModelUnit const part{"unit " + unit.name, std::move(own)};
    state.units.emplace_back(part, state.groups, state.config, state.memory, state.pool);
  }
  ModelUnit const tied{"the tied parameters", std::move(shared)};
  state.units.emplace_back(tied, state.groups, state.config, state.memory, state.pool);
  state.runs.resize(state.units.size());
  state.left.resize(state.units.size());
  state.model->set_observer(*this);
}

FullyShardedModel::~FullyShardedModel() {
  state_->model->remove_observer(*this);
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
  state_->model->abort(why);
  state_->groups.shard.abort(why);
  state_->abort_others(why);
}

std::vector<Tensor> FullyShardedModel::forward(std::span<Tensor const> inputs) {
  auto& state = *state_;
  auto const& mixed = state.config.mixed_precision;
  return state.run("forward", [&] {
    state.begin_forward();
    std::vector<Tensor> cast(inputs.begin(), inputs.end());
    for (auto& input : cast) {
      if (mixed.param_dtype && mixed.cast_forward_inputs && transforms::is_real(input.dtype()))
        input = transforms::as_dtype(input, *mixed.param_dtype);
    }
    auto outputs = state.model->forward(cast);
    state.pool.clear();
    state.output_dtypes.clear();
    for (auto& output : outputs) {
      state.output_dtypes.push_back(output.dtype());
      if (mixed.output_dtype && transforms::is_real(output.dtype()))
        output = transforms::as_dtype(output, *mixed.output_dtype);
    }
    return outputs;
  });
}

void FullyShardedModel::backward(std::span<Tensor const> gradients) {
  auto& state = *state_;
  state.run("backward", [&] {
    state.begin_backward(sync_);
    state.gather(state.own_units());  // given back since, if another pass has ended
    state.units.back().prepare_gradients();
    std::vector<Tensor> cast(gradients.begin(), gradients.end());
    for (std::size_t i = 0; i < std::min(cast.size(), state.output_dtypes.size()); ++i) {
      if (state.config.mixed_precision.output_dtype && transforms::is_real(cast[i].dtype()))
        cast[i] = transforms::as_dtype(cast[i], state.output_dtypes[i]);
    }
    state.model->backward(cast);
    for (std::size_t unit = state.units.size(); sync_ && unit-- > 0;) {
      if (!state.reduced[unit]) state.reduce(unit);
    }
    for (auto& unit : state.units) {
      if (!sync_) unit.accumulate();
    }
    state.finish_reduction();
    state.release_all();
  });
}

void FullyShardedModel::before_unit(std::size_t unit, Pass pass) {
  auto& state = *state_;
  pass == Pass::forward ? state.enter_forward(unit) : state.enter_backward(unit);
  if (state.observer != nullptr) state.observer->before_unit(unit, pass);
}

void FullyShardedModel::after_unit(std::size_t unit, Pass pass) {
  auto& state = *state_;
  if (state.observer != nullptr) state.observer->after_unit(unit, pass);
  if (pass == Pass::forward) {
    bool const to_smaller_group = std::holds_alternative<int>(state.config.reshard_after_forward);
    if (state.reshards(unit))
      state.units[unit].release(to_smaller_group ? UnitShards::RetainedPart::own_part
                                                 : UnitShards::RetainedPart::nothing);
    return;
  }
  std::erase(state.running, unit);
  state.units[unit].release();
  if (--state.left[unit] > 0) return;  // the next run adds to the same gradients
  if (sync_) return state.end_backward(unit);
  state.units[unit].accumulate();
  if (unit > 0) state.prefetch(unit - 1);
}

void FullyShardedModel::gradient_ready(Parameter& parameter) {
  auto const place = state_->places.find(&parameter);
  if (place != state_->places.end()) state_->units[place->second.first].mark_used(place->second.second);
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
  state_->model->zero_grad();
  for (auto& unit : state_->units) unit.drop_gradients();
}

double FullyShardedModel::sum_over_shards(double local) {
  return state_->groups.shard.all_reduce_value(state_->model->sum_over_shards(local));
}

void FullyShardedModel::for_each_parameter(std::function<void(std::string const&, Tensor const&)> const& use) {
  state_->run("for_each_parameter", [&] {
    state_->release_all();
    for (auto& unit : state_->units) {
      unit.start_gather(UnitShards::GatherDtype::of_shards);
      unit.finish_gather();
      unit.visit(use);
      unit.release();
    }
    state_->pool.clear();
  });
}

void FullyShardedModel::load_parameters(std::function<Tensor(std::string const&)> const& load) {
  state_->release_all();
  for (auto& unit : state_->units) unit.load(load);
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
  auto const& mixed = config_.mixed_precision;
  for (auto const& [field, dtype] :
       {std::pair("param_dtype", mixed.param_dtype), std::pair("reduce_dtype", mixed.reduce_dtype),
        std::pair("output_dtype", mixed.output_dtype)}) {
    if (dtype && !transforms::is_real(*dtype)) {
      refuse("mixed_precision." + std::string(field) + " must be a dtype to compute with", "F16, BF16, F32 or F64",
             std::string(name_of(*dtype)));
    }
  }
  if (mixed.fp8_enabled && mixed.fp8_format != Dtype::f8_e4m3 && mixed.fp8_format != Dtype::f8_e5m2)
    refuse("mixed_precision.fp8_format must be an FP8 dtype", "F8_E4M3 or F8_E5M2",
           std::string(name_of(mixed.fp8_format)));
  require_parameters(model.get(), "FullyShardTransform.apply");
  // Before anything else, because ranks with another config make other calls next.
  transforms::require_same_model(job.dp_world(), *model, to_json(config_), "FullyShardTransform.apply");
  for (auto const& unit : model->units()) {
    for (auto const& parameter : unit.parameters) {
      if (!parameter->requires_grad || transforms::is_real(parameter->value.dtype())) continue;
      refuse("the gradients of the parameter " + parameter->name + " cannot be reduced", "F64, F32, BF16 or F16",
             std::string(name_of(parameter->value.dtype())));
    }
  }
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
  transforms::broadcast_values(job.dp_world(), model->buffers());
  return std::make_shared<FullyShardedModel>(std::move(model), std::move(groups), config_);
}

}  // namespace crossrank
