#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include <crossrank/torch/parameter_slot.hpp>
#include <crossrank/torch/unit.hpp>
#include <crossrank/transforms/model.hpp>

namespace crossrank::torch {

/// The adapter between a module of LibTorch and the transforms: an engine whose gradients come from autograd.
///
/// Its first unit, "root", has the parameters that are in no `Unit`; the others are the `Unit`s in the order in which
/// they are registered. Tied parameters have the first of their names. Gradients are reported from the post hooks of
/// autograd's accumulators. Errors of LibTorch become `BackendError`, with their text. Use `ddp` or `fully_shard`,
/// which make one and wrap it.
class ModuleModel final : public TrainableModel,
                          public std::enable_shared_from_this<ModuleModel>,
                          private UnitBase::Host {
 public:
  /// Takes the parameters and buffers of `module` as they are. `forward` runs it, in calls of
  /// `TrainableModel::forward`. `UsageError` for a parameter or buffer that `from_torch` refuses.
  explicit ModuleModel(std::shared_ptr<::torch::nn::Module> module, detail::Body forward = {})
      : module_(std::move(module)), forward_(std::move(forward)), link_(std::make_shared<ModuleModel*>(this)) {
    units_.push_back({.name = "root"});
    collect(module_, "", 0);
    parameter_count_ = module_->named_parameters().size();
    for (auto const& buffer : module_->named_buffers()) {
      buffers_.push_back(std::make_shared<Parameter>());
      buffers_.back()->name = buffer.key();
      buffers_.back()->requires_grad = false;
      buffers_.back()->value = from_torch(buffer.value());
    }
    for (std::size_t i = 0; i < unit_modules_.size(); ++i) unit_modules_[i]->bind(this, i + 1);
  }
  ~ModuleModel() override {
    *link_ = nullptr;
    for (auto const& unit : unit_modules_) unit->unbind(this);
  }

  [[nodiscard]] std::vector<ModelUnit> units() const override { return units_; }
  /// Returns the buffers as they are now: a module may replace the tensor.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> buffers() const override {
    auto const now = module_->named_buffers();
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      auto const* const buffer = now.find(buffers_[i]->name);
      if (buffer != nullptr && buffer->data_ptr() != buffers_[i]->value.data())
        buffers_[i]->value = from_torch(*buffer);
    }
    return buffers_;
  }

  /// Runs the module. `backward` is then for this run.
  [[nodiscard]] std::vector<Tensor> forward(std::span<Tensor const> inputs) override {
    auto const body = std::exchange(next_.body, {});
    auto const takes = std::exchange(next_.takes, {});
    auto const originals = std::exchange(next_.inputs, {});
    if (!body && !forward_) {
      detail::refuse("ModuleModel.forward", "the model was made without a function that runs the module", "a function",
                     "none", "pass one to the constructor, or call forward of what ddp or fully_shard returned");
    }
    return guarded("ModuleModel.forward", [&] {
      if (observer_ != nullptr) {
        require_same_parameters("ModuleModel.forward");
        for (auto const& slot : slots_) slot->require_still_frozen();
        require_own_memory("ModuleModel.forward");
      }
      detail::Tensors given;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        given.push_back(i < originals.size() ? alias(originals[i], inputs[i]) : detail::share(inputs[i]));
        if (i < takes.size() && takes[i]) given.back().set_requires_grad(true);
      }
      auto const call = std::make_shared<detail::Call>(run_part(0, given, body ? body : forward_));
      call_ = call;
      std::vector<Tensor> results;
      for (auto const& output : call->outputs)
        results.push_back(output.defined() ? from_torch(output.detach().contiguous()) : Tensor{});
      return results;
    });
  }

  /// Runs autograd's backward pass.
  void backward(std::span<Tensor const> gradients) override {
    guarded("ModuleModel.backward", [&] {
      if (call_ == nullptr)
        detail::refuse("ModuleModel.backward", "there is no forward pass", "forward first", "backward", "");
      detail::Tensors given;
      for (auto const& gradient : gradients) given.push_back(detail::share(gradient));
      for (auto& slot : slots_) {
        if (!slot->is_sharded()) slot->give_gradient();
      }
      in_backward_ = true;
      auto const call = std::exchange(call_, {});
      try {
        input_gradients_ = part_backward(0, *call, given);
      } catch (...) {
        in_backward_ = false;
        throw;
      }
      in_backward_ = false;
    });
  }

  void observe(TrainingObserver* observer) override {
    observer_ = observer;
    if (observer_ == nullptr) return;
    for (auto& slot : slots_) {
      if (slot->is_sharded() && !is_sharded_) slot->empty_variable();
      if (!slot->parameter()->requires_grad || slot->has_hook()) continue;
      slot->on_gradient([link = link_, at = slot.get()] {
        if (*link != nullptr) (*link)->gradient_ready(*at);
      });
    }
    is_sharded_ = !slots_.empty() && slots_.front()->is_sharded();
  }

  /// `UsageError` for a parameter whose tensor LibTorch has replaced since, as for `sharded_state_dict`.
  [[nodiscard]] std::vector<TrainedTensor> trained_tensors() override {
    require_own_memory("ModuleModel.trained_tensors");
    pull_gradients();
    return TrainableModel::trained_tensors();
  }
  [[nodiscard]] std::vector<TensorShard> sharded_state_dict() override {
    require_own_memory("ModuleModel.sharded_state_dict");
    return TrainableModel::sharded_state_dict();
  }
  void zero_grad() override {
    TrainableModel::zero_grad();
    for (auto& slot : slots_) slot->drop_gradient();
  }

  /// Runs a call of the module through `outer`, the transform around this model, as one step of the surrounding graph.
  /// `body` gets the inputs and returns the outputs.
  [[nodiscard]] detail::Tensors run(std::shared_ptr<TrainableModel> const& outer, detail::Tensors const& inputs,
                                    detail::Body const& body) {
    next_.body = body;
    next_.inputs = inputs;
    next_.takes.clear();
    std::vector<Tensor> given;
    for (auto const& input : inputs) {
      given.push_back(input.defined() ? from_torch(input.detach().contiguous()) : Tensor{});
      next_.takes.push_back(at::GradMode::is_enabled() && detail::takes_gradients(input));
    }
    std::vector<Tensor> results;
    try {
      results = outer->forward(given);
    } catch (...) {
      next_ = {};  // it refers to the caller's arguments
      throw;
    }
    auto const call = std::exchange(call_, {});
    detail::Tensors outputs;
    for (std::size_t i = 0; i < results.size(); ++i) outputs.push_back(alias(call->outputs[i], results[i]));
    auto const takes = outputs_with_gradients(*call);
    if (!at::GradMode::is_enabled()) return outputs;
    detail::join_graph(inputs, outputs, takes, [self = shared_from_this(), outer, call](detail::Tensors const& seeds) {
      return self->run_backward_of(*outer, call, seeds);
    });
    return outputs;
  }

  /// Makes the gradients of both sides equal, before a pass.
  void pull_gradients() {
    for (auto& slot : slots_) {
      if (!slot->is_sharded() && slot->parameter()->requires_grad) slot->pull_gradient();
    }
  }

  /// Called before each backward pass of `run`, for gradients that live elsewhere.
  std::function<void()> before_backward{};
  /// Called after each backward pass of `run` that did not throw.
  std::function<void()> after_backward{};

 private:
  /// Values of a unit's parameters, while it runs.
  class Attached {
   public:
    Attached(ModuleModel& model, std::size_t unit, Pass pass) : model_(model), unit_(unit), pass_(pass) {
      if (model.observer_ != nullptr) model.observer_->before_unit(unit, pass);
      for (auto* const slot : model.unit_slots_[unit]) {
        slot->attach();
        if (pass == Pass::backward && slot->is_sharded()) slot->give_gradient();
      }
    }
    ~Attached() {
      if (!ended_) detach();
    }
    Attached(Attached const&) = delete;
    Attached& operator=(Attached const&) = delete;
    void end() {
      detach();
      ended_ = true;
      if (model_.observer_ != nullptr) model_.observer_->after_unit(unit_, pass_);
    }

   private:
    void detach() {
      for (auto* const slot : model_.unit_slots_[unit_]) {
        if (slot->detach() && pass_ == Pass::backward) slot->drop_gradient();
      }
    }
    ModuleModel& model_;
    std::size_t unit_;
    Pass pass_;
    bool ended_ = false;
  };

  template <class Work>
  static std::invoke_result_t<Work const&> guarded(char const* operation, Work const& work) {
    try {
      return work();
    } catch (c10::Error const& e) {
      throw BackendError({.operation = operation, .message = "LibTorch failed", .system = e.what_without_backtrace()});
    }
  }

  /// Throws when the module has got or lost a parameter since, such as those of a part that was replaced: the transform
  /// would continue with the old one.
  void require_same_parameters(char const* operation) const {
    auto const now = module_->named_parameters();
    for (auto const& item : now) {
      if (!places_.contains(item.value().unsafeGetTensorImpl()))
        refuse_parameter(operation, item.key(), "the module has got a parameter after the model was made");
    }
    if (now.size() == parameter_count_) return;
    auto const lost = std::find_if(slots_.begin(), slots_.end(),
                                   [&](auto const& slot) { return !now.contains(slot->parameter()->name); });
    refuse_parameter(operation, lost == slots_.end() ? "" : (*lost)->parameter()->name,
                     "the module has lost a parameter after the model was made");
  }
  [[noreturn]] static void refuse_parameter(char const* operation, std::string name, char const* message) {
    throw UsageError({.operation = operation,
                      .message = message,
                      .resource = std::move(name),
                      .hint = "register and replace modules before ddp or fully_shard"});
  }

  void require_own_memory(char const* operation) const {
    for (auto const& slot : slots_) slot->require_own_memory(operation);
  }

  /// Returns a view of the bytes of `tensor`. Where these are those of `original`, autograd notices when either is
  /// changed in place before the backward pass.
  static at::Tensor alias(at::Tensor const& original, Tensor const& tensor) {
    bool const is_same = original.defined() && tensor.defined() && original.data_ptr() == tensor.data() &&
                         original.scalar_type() == to_scalar_type(tensor.dtype());
    return is_same ? original.detach() : detail::share(tensor);
  }

  static std::vector<bool> outputs_with_gradients(detail::Call const& call) {
    std::vector<bool> takes;
    for (auto const& output : call.outputs) takes.push_back(detail::takes_gradients(output));
    return takes;
  }

  void collect(std::shared_ptr<::torch::nn::Module> const& module, std::string const& prefix, std::size_t unit) {
    if (auto own = std::dynamic_pointer_cast<UnitBase>(module)) {
      unit = units_.size();
      units_.push_back({.name = prefix.empty() ? "module" : prefix.substr(0, prefix.size() - 1)});
      unit_modules_.push_back(std::move(own));
    }
    unit_slots_.resize(units_.size());
    for (auto const& item : module->named_parameters(false)) {
      auto& slot = places_[item.value().unsafeGetTensorImpl()];
      if (slot == nullptr) {
        slots_.push_back(std::make_unique<detail::ParameterSlot>(prefix + item.key(), item.value()));
        slot = slots_.back().get();
      }
      if (std::find(unit_slots_[unit].begin(), unit_slots_[unit].end(), slot) != unit_slots_[unit].end()) continue;
      unit_slots_[unit].push_back(slot);
      units_[unit].parameters.push_back(slot->parameter());
    }
    for (auto const& child : module->named_children()) collect(child.value(), prefix + child.key() + ".", unit);
  }

  [[nodiscard]] bool is_sharded_value(std::size_t unit, at::Tensor const& tensor) const {
    auto const holds = [&](auto const* slot) { return slot->is_sharded() && tensor.is_alias_of(slot->variable()); };
    return tensor.defined() && std::any_of(unit_slots_[unit].begin(), unit_slots_[unit].end(), holds);
  }

  detail::Call run_part(std::size_t unit, detail::Tensors const& inputs, detail::Body const& body) {
    Attached attached(*this, unit, Pass::forward);
    // A result that is a parameter, or a view of one, is copied: the values are given back before the caller reads it.
    auto call = detail::run_apart(inputs, [&](detail::Tensors const& own_inputs) {
      auto outputs = body(own_inputs);
      for (auto& output : outputs) {
        if (is_sharded_value(unit, output)) output = output.clone();
      }
      return outputs;
    });
    attached.end();
    return call;
  }

  detail::Tensors part_backward(std::size_t unit, detail::Call& call, detail::Tensors const& gradients) {
    Attached attached(*this, unit, Pass::backward);
    auto results = detail::run_backward(call, gradients);
    attached.end();
    return results;
  }

  detail::Tensors run_unit(std::size_t unit, detail::Tensors const& inputs, detail::Body const& body) override {
    if (!is_sharded_) return body(inputs);
    auto const call = std::make_shared<detail::Call>(run_part(unit, inputs, body));
    auto outputs = call->outputs;
    if (!at::GradMode::is_enabled()) return outputs;
    detail::join_graph(inputs, outputs, outputs_with_gradients(*call),
                       [link = link_, call, unit](detail::Tensors const& gradients) {
                         return (*link)->part_backward(unit, *call, gradients);
                       });
    return outputs;
  }

  detail::Tensors run_backward_of(TrainableModel& outer, std::shared_ptr<detail::Call> const& call,
                                  detail::Tensors const& seeds) {
    pull_gradients();
    if (before_backward) before_backward();
    call_ = call;
    std::vector<Tensor> given;
    for (auto const& seed : seeds) given.push_back(seed.defined() ? from_torch(seed.contiguous()) : Tensor{});
    outer.backward(given);
    for (auto& slot : slots_) {
      if (!slot->is_sharded()) slot->publish_gradient();
    }
    if (after_backward) after_backward();
    return std::exchange(input_gradients_, {});
  }

  void gradient_ready(detail::ParameterSlot& slot) {
    if (observer_ == nullptr) return;
    if (!in_backward_) {
      throw UsageError({.operation = "ModuleModel.backward",
                        .message = "the module ran outside its distributed model, so its gradients are not reduced",
                        .resource = slot.parameter()->name,
                        .hint = "call forward of what ddp or fully_shard returned, not of the module"});
    }
    slot.take_gradient();
    observer_->gradient_ready(*slot.parameter());
  }

  std::shared_ptr<::torch::nn::Module> module_;
  detail::Body forward_;
  std::shared_ptr<ModuleModel*> link_;  ///< for autograd's graph, which may outlive this; null then
  std::vector<ModelUnit> units_{};
  std::vector<std::shared_ptr<UnitBase>> unit_modules_{};  ///< the program may replace them in their parents
  std::vector<std::unique_ptr<detail::ParameterSlot>> slots_{};
  std::unordered_map<at::TensorImpl const*, detail::ParameterSlot*> places_{};
  std::size_t parameter_count_ = 0;  ///< names of parameters, several for a tied one
  std::vector<std::vector<detail::ParameterSlot*>> unit_slots_{};
  std::vector<std::shared_ptr<Parameter>> buffers_{};
  TrainingObserver* observer_ = nullptr;
  bool is_sharded_ = false;
  bool in_backward_ = false;
  struct Next {
    detail::Body body{};
    std::vector<bool> takes{};
    detail::Tensors inputs{};
  } next_{};                              ///< the call that `run` makes
  std::shared_ptr<detail::Call> call_{};  ///< the last forward pass
  detail::Tensors input_gradients_{};     ///< of the last backward pass
};

}  // namespace crossrank::torch
