#pragma once
#include <cstddef>
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

/// Makes a module a unit of sharding: `register_module("block", std::make_shared<xr::torch::Unit<BlockImpl>>(width))`.
///
/// C++ modules have no forward hooks, so a unit is a type of its own: `M` with a `forward` that tells the model when it
/// begins and ends, in both directions. Names of parameters do not change. Call `forward` through the `Unit`, not
/// through a pointer to `M`. Without `fully_shard` it only calls `M::forward`. Arguments are copied; the tensors among
/// them, and in vectors, arrays and tuples, carry gradients, other arguments do not.
template <class M>
class Unit : public M, public UnitBase {
 public:
  using M::M;

  /// Runs the module.
  template <class... Args>
  auto forward(Args const&... args) {
    auto const forward = [this](auto const&... own) { return M::forward(own...); };
    if (host() == nullptr) return forward(args...);
    auto const run = [this](detail::Tensors const& inputs, detail::Body const& body) {
      return host()->run_unit(unit(), inputs, body);
    };
    return detail::call_through(run, forward, args...);
  }
};

}  // namespace crossrank::torch
