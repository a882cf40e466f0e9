#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <torch/csrc/autograd/variable.h>

#include <crossrank/error.hpp>
#include <crossrank/torch/call.hpp>
#include <crossrank/transforms/model.hpp>

namespace crossrank::torch::detail {

/// One parameter of a module, on both sides: the variable of LibTorch and the `Parameter` of the transforms.
///
/// A whole parameter shares its memory with the variable. A sharded one has memory only while it is gathered. The
/// variable then has a storage whose pointer changes, because autograd keeps views of that storage between the forward
/// and the backward pass. In between, the variable is empty.
class ParameterSlot {
 public:
  ParameterSlot(std::string name, at::Tensor variable) : variable_(std::move(variable)) {
    parameter_ = std::make_shared<Parameter>();
    parameter_->name = std::move(name);
    parameter_->requires_grad = variable_.requires_grad();
    parameter_->value = from_torch(variable_);
    whole_ = parameter_->value.storage();
  }

  [[nodiscard]] std::shared_ptr<Parameter> const& parameter() const noexcept { return parameter_; }
  [[nodiscard]] at::Tensor const& variable() const noexcept { return variable_; }
  /// Returns whether a transform has taken the whole values away.
  [[nodiscard]] bool is_sharded() const noexcept { return parameter_->value.storage() != whole_.lock(); }

  /// Makes the variable empty, in the dtype in which the parameter is gathered.
  void empty_variable() {
    sizes_.assign(parameter_->value.shape().begin(), parameter_->value.shape().end());
    auto const dtype = to_scalar_type(parameter_->value.dtype());
    storage_ = c10::Storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, at::kCPU), nullptr, false);
    auto fresh = at::empty({0}, dtype);
    fresh.set_(storage_, 0, {0}, {1});
    variable_.set_data(fresh);
  }

  /// Calls `ready` whenever autograd has added to the gradient.
  template <class Ready>
  void on_gradient(Ready ready) {
    struct Hook final : ::torch::autograd::FunctionPostHook {
      explicit Hook(Ready ready_call) : call(std::move(ready_call)) {}
      Tensors operator()(Tensors const& outputs, Tensors const&) override {
        call();
        return outputs;
      }
      Ready call;
    };
    if (is_sharded()) variable_.unsafeGetTensorImpl()->set_sizes_contiguous(sizes_);  // autograd remembers the shape
    accumulator_ = ::torch::autograd::impl::grad_accumulator(variable_);
    if (is_sharded()) variable_.unsafeGetTensorImpl()->set_sizes_contiguous(empty_sizes);
    accumulator_->add_post_hook(std::make_unique<Hook>(std::move(ready)));
  }
  [[nodiscard]] bool has_hook() const noexcept { return static_cast<bool>(accumulator_); }

  /// Gives a sharded variable the gathered values, for each unit that begins to use it.
  void attach() {
    if (!is_sharded() || uses_++ > 0) return;
    auto const& value = parameter_->value;
    static_cast<void>(value.bytes());  // throws if the values were given back
    allow_access(*storage_.unsafeGetStorageImpl());
    storage_.set_data_ptr_noswap(at::DataPtr(value.data(), at::kCPU));
    storage_.set_nbytes(value.nbytes());
    variable_.unsafeGetTensorImpl()->set_sizes_contiguous(sizes_);
  }
  /// Takes them away, once no unit uses them. Returns whether it did.
  [[nodiscard]] bool detach() {
    if (!is_sharded() || --uses_ > 0) return false;
    variable_.unsafeGetTensorImpl()->set_sizes_contiguous(empty_sizes);
    storage_.set_nbytes(std::size_t{0});
    storage_.set_data_ptr_noswap(at::DataPtr(nullptr, at::kCPU));
    refuse_access(*storage_.unsafeGetStorageImpl());
    return true;
  }

  /// Throws `UsageError` if the variable was frozen when the model was made and is not now. Nothing would reduce it.
  void require_still_frozen() const {
    if (parameter_->requires_grad || !variable_.requires_grad()) return;
    throw UsageError({.operation = "ModuleModel.forward",
                      .message = "the parameter did not require a gradient when the model was made, and does now",
                      .resource = parameter_->name,
                      .hint = "set requires_grad before ddp or fully_shard"});
  }
  /// Throws `UsageError` if the variable has got other memory since the model was made. Nothing would train that.
  void require_own_memory(char const* operation) const {
    bool const is_own = is_sharded() ? variable_.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl()
                                     : variable_.data_ptr() == parameter_->value.data() &&
                                           variable_.scalar_type() == to_scalar_type(parameter_->value.dtype());
    if (is_own && has_own_hook()) return;
    throw UsageError({.operation = operation,
                      .message = "the parameter's tensor was replaced after the model was made",
                      .resource = parameter_->name,
                      .hint = "call Module::to and torch::load before ddp or fully_shard, or load_checkpoint after"});
  }
  /// Lets autograd add to the gradient of the parameter.
  void give_gradient() {
    if (parameter_->requires_grad) variable_.mutable_grad() = share(parameter_->grad);
  }
  void drop_gradient() {
    if (parameter_->requires_grad) variable_.mutable_grad() = at::Tensor();
  }
  /// Takes over the gradient of the variable, unless it is that of the parameter already.
  void take_gradient() {
    auto const& grad = variable_.grad();
    if (grad.defined() && grad.layout() != at::kStrided) {
      throw UsageError({.operation = "ModuleModel.backward",
                        .message = "the gradient is sparse",
                        .expected = "a dense gradient",
                        .got = describe(grad),
                        .resource = parameter_->name,
                        .hint = "turn off sparse gradients of the module"});
    }
    if (!grad.defined()) {
      parameter_->grad = {};
    } else if (!parameter_->grad.defined() || parameter_->grad.data() != grad.data_ptr()) {
      parameter_->grad = from_torch(grad);
    }
  }

  /// Before a pass: either side may have dropped or replaced the gradient since the last one.
  void pull_gradient() {
    bool const dropped = was_given_ && !parameter_->grad.defined();
    if (dropped) drop_gradient();
    take_gradient();
  }
  /// After a pass: the gradient is that of the parameter.
  void publish_gradient() {
    give_gradient();
    was_given_ = parameter_->grad.defined();
  }

 private:
  static constexpr std::array<std::int64_t, 1> empty_sizes{0};

  /// Returns whether autograd still calls the hook of a whole variable, if there is one.
  [[nodiscard]] bool has_own_hook() const {
    if (!has_hook() || is_sharded() || !variable_.requires_grad()) return true;
    return ::torch::autograd::impl::grad_accumulator(variable_) == accumulator_;
  }

  /// Makes access to the storage an error that says why, also through views that the caller has kept. Older versions of
  /// LibTorch cannot do that; such a view has a null pointer there.
  template <class Impl>
  void refuse_access(Impl& storage) const {
    if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
          "the full values of " + parameter_->name + " were given back after its unit ran; read them while it runs");
    }
  }
  template <class Impl>
  static void allow_access(Impl& storage) {
    if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) storage.clear_data_ptr_access_error_msg_();
  }

  std::shared_ptr<Parameter> parameter_{};
  at::Tensor variable_;
  std::weak_ptr<spi::Storage> whole_{};  ///< memory of the whole values
  NodePtr accumulator_{};                ///< kept, because the variable does not own it
  std::vector<std::int64_t> sizes_{};
  c10::Storage storage_{};
  int uses_ = 0;
  bool was_given_ = false;
};

}  // namespace crossrank::torch::detail
