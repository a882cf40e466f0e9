#include <string>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/transforms.hpp>

#include "transforms/ddp/gradient_reducer.hpp"
#include "transforms/model/common_values.hpp"
#include "transforms/model/reals.hpp"

namespace crossrank {

using transforms::run_step;

struct DDPWrappedModel::State {
  std::shared_ptr<TrainableModel> model;
  Collective group;
  transforms::GradientReducer reducer;
  TrainingObserver* observer = nullptr;
};

DDPWrappedModel::DDPWrappedModel(std::shared_ptr<TrainableModel> model, Collective group, DDPTransformConfig config)
    : state_(std::make_unique<State>(
          State{model, group, transforms::GradientReducer(model->parameters(), group, std::move(config))})) {
  state_->model->set_observer(*this);
}

DDPWrappedModel::~DDPWrappedModel() { state_->model->remove_observer(*this); }

std::vector<ModelUnit> DDPWrappedModel::units() const { return state_->model->units(); }
std::vector<std::shared_ptr<Parameter>> DDPWrappedModel::buffers() const { return state_->model->buffers(); }
void DDPWrappedModel::observe(TrainingObserver* observer) { state_->observer = observer; }
std::vector<TrainedTensor> DDPWrappedModel::trained_tensors() { return state_->model->trained_tensors(); }
std::vector<TensorShard> DDPWrappedModel::sharded_state_dict() { return state_->model->sharded_state_dict(); }
void DDPWrappedModel::zero_grad() { state_->model->zero_grad(); }
double DDPWrappedModel::sum_over_shards(double local) { return state_->model->sum_over_shards(local); }
void DDPWrappedModel::abort(std::string_view why) noexcept {
  state_->model->abort(why);
  state_->group.abort(why);
}
void DDPWrappedModel::register_comm_hook(CommunicationHook hook) { state_->reducer.set_hook(std::move(hook)); }
std::vector<std::vector<std::string>> DDPWrappedModel::buckets() const { return state_->reducer.names(); }

std::vector<Tensor> DDPWrappedModel::forward(std::span<Tensor const> inputs) {
  return run_step(state_->group, "forward", [&] {
    if (auto const all = buffers(); sync_ && !all.empty()) transforms::broadcast_values(state_->group, all);
    return state_->model->forward(inputs);
  });
}

void DDPWrappedModel::backward(std::span<Tensor const> gradients) {
  try {
    run_step(state_->group, "backward", [&] {
      state_->reducer.begin(sync_);
      state_->model->backward(gradients);
      state_->reducer.finish();
    });
  } catch (...) {
    state_->reducer.drop();
    throw;
  }
}

void DDPWrappedModel::before_unit(std::size_t unit, Pass pass) {
  if (state_->observer != nullptr) state_->observer->before_unit(unit, pass);
}

void DDPWrappedModel::after_unit(std::size_t unit, Pass pass) {
  if (state_->observer != nullptr) state_->observer->after_unit(unit, pass);
}

void DDPWrappedModel::gradient_ready(Parameter& parameter) {
  state_->reducer.ready(parameter);
  if (state_->observer != nullptr) state_->observer->gradient_ready(parameter);
}

CommunicationHook bf16_compress_hook() {
  return {.compress = [](Tensor const& gradients) { return transforms::as_dtype(gradients, Dtype::bf16); },
          .decompress = [](Tensor const& reduced, Tensor& gradients) { transforms::convert(reduced, gradients); }};
}

DDPTransform::DDPTransform(DDPTransformConfig config, JobCollective collective, Device device)
    : BaseDistributedTransform(config.common, std::move(collective), device), config_(std::move(config)) {}

std::shared_ptr<TrainableModel> DDPTransform::apply(std::shared_ptr<TrainableModel> model) {
  auto const& job = collective();
  if (job.dp_world_size() == 1) return model;
  if (auto const* const mesh = job.mesh(); mesh != nullptr && (*mesh)["dp_shard"].world_size() != 1) {
    throw UsageError({.operation = "DDPTransform.apply",
                      .message = "the mesh shards parameters, and DDP needs whole ones",
                      .expected = "dp_replicate of " + std::to_string(job.dp_world_size()),
                      .got = "dp_shard of " + std::to_string((*mesh)["dp_shard"].world_size()),
                      .hint = "make the mesh with sharding_world_size = 1, or use FullyShardTransform",
                      .rank = job.rank(),
                      .world_size = job.world_size()});
  }
  require_parameters(model.get(), "DDPTransform.apply");
  // Before anything else, because other ranks may make other calls next.
  transforms::require_same_model(job.dp_world(), *model, to_json(config_), "DDPTransform.apply");
  auto group = job.dp_world().split_by(0);
  auto all = model->parameters();
  auto const buffers = model->buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  transforms::broadcast_values(group, all);
  return std::make_shared<DDPWrappedModel>(std::move(model), std::move(group), config_);
}

}  // namespace crossrank
