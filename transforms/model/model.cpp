#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/transforms.hpp>

/// The adapter between engines and transforms, and the bases of the transforms.
namespace crossrank {

TrainingObserver::~TrainingObserver() = default;
TrainableModel::~TrainableModel() = default;
BaseModelTransform::~BaseModelTransform() = default;

void TrainableModel::set_observer(TrainingObserver& observer) {
  observer_ = &observer;
  observe(observer_);
}

void TrainableModel::remove_observer(TrainingObserver const& observer) {
  if (observer_ != &observer) return;
  observer_ = nullptr;
  observe(nullptr);
}

std::vector<std::shared_ptr<Parameter>> TrainableModel::buffers() const { return {}; }

std::vector<std::shared_ptr<Parameter>> TrainableModel::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all;
  std::unordered_set<Parameter const*> known;
  for (auto const& unit : units()) {
    for (auto const& parameter : unit.parameters) {
      if (known.insert(parameter.get()).second) all.push_back(parameter);
    }
  }
  return all;
}

std::vector<TrainedTensor> TrainableModel::trained_tensors() {
  std::vector<TrainedTensor> trained;
  for (auto const& parameter : parameters()) {
    if (parameter->requires_grad) trained.push_back({parameter->name, parameter->value, parameter->grad});
  }
  return trained;
}

std::vector<TensorShard> TrainableModel::sharded_state_dict() {
  std::vector<TensorShard> shards;
  for (auto const& all : {parameters(), buffers()}) {
    for (auto const& one : all) shards.push_back({.name = one->name, .value = one->value, .shape = one->value.shape()});
  }
  return shards;
}

void TrainableModel::zero_grad() {
  for (auto const& parameter : parameters()) parameter->grad = {};
}

double TrainableModel::sum_over_shards(double local) { return local; }
void TrainableModel::abort(std::string_view) noexcept {}

BaseDistributedTransform::BaseDistributedTransform(ModelTransformConfig config, JobCollective collective, Device device)
    : config_(std::move(config)), collective_(std::move(collective)), device_(device) {}
BaseDistributedTransform::~BaseDistributedTransform() = default;

void BaseDistributedTransform::require_parameters(TrainableModel const* model, char const* operation) const {
  auto const refuse = [&](std::string const& name, std::string message, std::string expected, std::string got) {
    throw UsageError({.operation = operation,
                      .message = std::move(message),
                      .expected = std::move(expected),
                      .got = std::move(got),
                      .resource = name,
                      .rank = collective_.dp_rank(),
                      .world_size = collective_.dp_world_size()});
  };
  if (model == nullptr) refuse({}, "there is no model", "a model", "a null pointer");
  auto const all = model->parameters();
  std::set<std::string> names;
  for (auto const& list : {all, model->buffers()}) {
    for (auto const& one : list) {
      if (!one) refuse({}, "the model has a parameter or buffer that is null", "a parameter", "a null pointer");
      if (!names.insert(one->name).second)
        refuse(one->name, "two parameters or buffers have this name", "a name for each", "the same name twice");
    }
  }
  for (auto const& parameter : all) {
    if (!parameter->value.defined()) refuse(parameter->name, "the parameter has no values", "a tensor", "none");
    if (parameter->value.device() != device_) {
      refuse(parameter->name, "the parameter is on another device than the transform", to_string(device_),
             to_string(parameter->value.device()));
    }
    if (parameter->requires_grad && parameter->grad_layout == GradientLayout::sparse)
      refuse(parameter->name, "the parameter has a sparse gradient", "a dense gradient", "a sparse one");
  }
}

std::shared_ptr<TrainableModel> apply_transforms(std::span<std::shared_ptr<BaseModelTransform> const> transforms,
                                                 std::shared_ptr<TrainableModel> model) {
  for (auto const& transform : transforms) model = transform->apply(std::move(model));
  return model;
}

}  // namespace crossrank
