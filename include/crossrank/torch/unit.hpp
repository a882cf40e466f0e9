#pragma once
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>

#include <crossrank/torch/call.hpp>

namespace crossrank::torch {

/// A module that `fully_shard` gathers and gives back as a whole. See `Unit`.
class UnitBase {
 public:
  /// Runs units for a model that shards them.
  class Host {
   public:
    virtual ~Host() = default;
    /// Runs unit `unit` of the model as one step of the autograd graph.
    virtual detail::Tensors run_unit(std::size_t unit, detail::Tensors const& inputs, detail::Body const& body) = 0;
  };

  virtual ~UnitBase() = default;
  /// Sets which unit of a model this is; a null host: of none.
  void bind(Host* host, std::size_t unit) noexcept {
    host_ = host;
    unit_ = unit;
  }
  /// Forgets the model, unless another one has bound the unit since.
  void unbind(Host const* host) noexcept {
    if (host_ == host) bind(nullptr, 0);
  }

 protected:
  /// Returns the model that shards the unit, or null.
  [[nodiscard]] Host* host() const noexcept { return host_; }
  /// Returns the number of the unit in its model.
  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }

 private:
  Host* host_ = nullptr;
  std::size_t unit_ = 0;
};

namespace detail {

template <class M, class... Args>
concept RunsWith = requires(M& module, Args... args) {
  module.forward(args...);
};

/// The parameters of a `forward` of `M` that takes only tensors, without default arguments, as a tuple. `void` for any
/// other function.
template <class M, class Forward>
struct TensorParameters {
  using Type = void;
};
template <class M, class R, class C, class First, class... Rest>
requires std::is_same_v<std::remove_cvref_t<First>, at::Tensor> &&
    (std::is_same_v<std::remove_cvref_t<Rest>, at::Tensor>&&...) struct TensorParameters<M, R (C::*)(First, Rest...)> {
  template <std::size_t... I>
  static constexpr bool runs_with_one_less(std::index_sequence<I...>) {
    return RunsWith<M, std::tuple_element_t<I, std::tuple<First, Rest...>>...>;
  }
  static constexpr bool has_defaults = runs_with_one_less(std::make_index_sequence<sizeof...(Rest)>());
  using Type = std::conditional_t<has_defaults, void, std::tuple<First, Rest...>>;
};
template <class M, class R, class C, class... Args>
struct TensorParameters<M, R (C::*)(Args...) const> : TensorParameters<M, R (C::*)(Args...)> {};

/// The parameters of `M::forward`, as above; `void` if there are several functions of that name.
template <class M>
struct ForwardParameters {
  using Type = void;
};
template <class M>
requires requires { typename std::type_identity_t<decltype(&M::forward)>; }
struct ForwardParameters<M> : TensorParameters<M, decltype(&M::forward)> {};

/// The `forward` of a unit `U` of any arguments.
template <class U, class Parameters>
class UnitForward {
 public:
  /// Runs the module.
  template <class... Args>
  auto forward(Args const&... args) {
    return static_cast<U&>(*this).run_as_unit(args...);
  }
};
/// The `forward` of a unit `U` whose address can be taken, which containers of LibTorch do.
template <class U, class... Args>
class UnitForward<U, std::tuple<Args...>> {
 public:
  /// Runs the module.
  auto forward(Args... args) { return static_cast<U&>(*this).run_as_unit(args...); }
};

}  // namespace detail

/// Makes a module a unit of sharding: `register_module("block", std::make_shared<xr::torch::Unit<BlockImpl>>(width))`.
///
/// C++ modules have no forward hooks, so a unit is a type of its own: `M` with a `forward` that tells the model when it
/// begins and ends, in both directions. Names of parameters do not change. Call `forward` through the `Unit`, not
/// through a pointer to `M`. Without `fully_shard` it only calls `M::forward`. Arguments are copied; the tensors among
/// them, and in vectors, arrays and tuples, carry gradients, other arguments do not. A unit whose `forward` takes only
/// tensors, without default arguments, also goes into `Sequential` and `AnyModule`.
template <class M>
class Unit : public M,
             public UnitBase,
             public detail::UnitForward<Unit<M>, typename detail::ForwardParameters<M>::Type> {
  using Forward = detail::UnitForward<Unit<M>, typename detail::ForwardParameters<M>::Type>;
  friend Forward;

 public:
  using Forward::forward;
  using M::M;

 private:
  template <class... Args>
  auto run_as_unit(Args const&... args) {
    auto const run_module = [this](auto const&... own) { return M::forward(own...); };
    if (host() == nullptr) return run_module(args...);
    auto const run = [this](detail::Tensors const& inputs, detail::Body const& body) {
      return host()->run_unit(unit(), inputs, body);
    };
    return detail::call_through(run, run_module, args...);
  }
};

}  // namespace crossrank::torch
