#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <crossrank/torch/tensor.hpp>

/// How a part of a model runs as one step of the surrounding autograd graph. The part has a graph of its own, whose
/// backward pass runs when the surrounding one reaches it.
namespace crossrank::torch::detail {

using Tensors = std::vector<at::Tensor>;
/// Runs a part of a model.
using Body = std::function<Tensors(Tensors const& inputs)>;
/// Takes gradients of the outputs and returns those of the inputs.
using Backward = std::function<Tensors(Tensors const& gradients)>;
/// Nodes of the graph have other owners in newer versions of LibTorch.
using NodePtr = decltype(::torch::autograd::impl::grad_accumulator(std::declval<at::Tensor const&>()));

template <class N, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<::torch::autograd::Node>>) {
    // Found by its argument: newer versions have no such function.
    return NodePtr(new N(std::forward<Args>(args)...), [](N* node) { deleteNode(node); });
  } else {
    return NodePtr(c10::make_intrusive<N>(std::forward<Args>(args)...));
  }
}

/// The end of a part's own graph: keeps the gradients of its inputs.
class Inputs final : public ::torch::autograd::Node {
 public:
  explicit Inputs(std::shared_ptr<Tensors> gradients) : gradients_(std::move(gradients)) {}

 private:
  Tensors apply(Tensors&& gradients) override {
    *gradients_ = std::move(gradients);
    return {};
  }
  std::shared_ptr<Tensors> gradients_;
};

[[noreturn]] inline void refuse_second_pass() {
  refuse("torch.backward", "this forward pass has had its backward pass", "one backward pass for each forward pass",
         "a second one", "call forward again");
}

/// A part's place in the surrounding graph.
class Boundary final : public ::torch::autograd::Node {
 public:
  explicit Boundary(Backward backward) : backward_(std::move(backward)) {}
  void release_variables() override { backward_ = nullptr; }

 private:
  Tensors apply(Tensors&& gradients) override {
    if (at::GradMode::is_enabled())
      refuse("torch.backward", "a distributed model has no second derivatives", "", "create_graph", "leave it out");
    if (!backward_) refuse_second_pass();
    return backward_(gradients);
  }
  Backward backward_;
};

/// One run of a part, until its backward pass.
struct Call {
  Tensors outputs{};                                                 ///< in the part's own graph
  std::shared_ptr<Tensors> gradients = std::make_shared<Tensors>();  ///< of the inputs
  bool is_done = false;                                              ///< whether the backward pass ran
};

inline bool takes_gradients(at::Tensor const& tensor) { return tensor.defined() && tensor.requires_grad(); }

/// Runs `body` in a graph of its own, if gradients are recorded.
inline Call run_apart(Tensors const& inputs, Body const& body) {
  Call call;
  call.gradients->resize(inputs.size());
  auto const begin = make_node<Inputs>(call.gradients);
  Tensors own;
  for (auto const& input : inputs) {
    own.push_back(input.defined() ? input.detach() : at::Tensor{});
    if (at::GradMode::is_enabled() && takes_gradients(input)) {
      ::torch::autograd::set_history(own.back(), begin);
    } else {
      begin->add_input_metadata(::torch::autograd::Node::undefined_input());
    }
  }
  call.outputs = body(own);
  return call;
}

/// Runs the backward pass of a part and returns the gradients of its inputs.
inline Tensors run_backward(Call& call, Tensors const& gradients) {
  if (std::exchange(call.is_done, true)) refuse_second_pass();
  Tensors roots;
  Tensors seeds;
  for (std::size_t i = 0; i < call.outputs.size() && i < gradients.size(); ++i) {
    if (!takes_gradients(call.outputs[i]) || !gradients[i].defined()) continue;
    roots.push_back(call.outputs[i]);
    seeds.push_back(gradients[i].to(call.outputs[i].scalar_type()));
  }
  call.outputs.clear();
  if (!roots.empty()) ::torch::autograd::backward(roots, seeds);
  return *call.gradients;
}

/// Makes `outputs` results of `inputs` in the surrounding graph. `takes[i]`: whether output i has a gradient.
inline void join_graph(Tensors const& inputs, Tensors& outputs, std::vector<bool> const& takes, Backward backward) {
  auto const node = make_node<Boundary>(std::move(backward));
  ::torch::autograd::edge_list edges;
  for (auto const& input : inputs)
    edges.push_back(takes_gradients(input) ? ::torch::autograd::impl::gradient_edge(input) : ::torch::autograd::Edge());
  node->set_next_edges(std::move(edges));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined()) outputs[i] = outputs[i].detach();
    if (takes[i]) {
      ::torch::autograd::set_history(outputs[i], node);
    } else {
      node->add_input_metadata(::torch::autograd::Node::undefined_input());
    }
  }
}

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

/// Calls `visit` with each tensor in arguments or results: tensors, vectors, arrays, tuples and pairs of them.
template <class T, class Visit>
void for_each_tensor(T& value, Visit const& visit) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    visit(value);
  } else if constexpr (IsTuple<std::remove_const_t<T>>::value) {
    std::apply([&](auto&... part) { (for_each_tensor(part, visit), ...); }, value);
  } else if constexpr (requires {
                         requires std::is_base_of_v<at::Tensor, typename T::value_type>;
                         value.begin();
                       }) {
    for (auto& one : value) visit(one);
  }
}

/// Returns the tensors in arguments or results.
template <class T>
Tensors tensors_in(T& value) {
  Tensors all;
  for_each_tensor(value, [&](at::Tensor& tensor) { all.push_back(tensor); });
  return all;
}

/// Replaces the tensors in arguments or results.
template <class T>
void put_tensors(T& value, Tensors const& tensors) {
  std::size_t next = 0;
  for_each_tensor(value, [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
}

/// Runs `forward` on copies of the arguments through `run`, which may replace the tensors that go in and come out.
template <class Run, class Forward, class... Args>
auto call_through(Run const& run, Forward const& forward, Args const&... args) {
  std::tuple<std::decay_t<Args>...> own(args...);
  using Result = decltype(std::apply(forward, own));
  std::optional<Result> result;
  auto const outputs = run(tensors_in(own), [&](Tensors const& inputs) {
    put_tensors(own, inputs);
    result.emplace(std::apply(forward, own));
    return tensors_in(*result);
  });
  put_tensors(*result, outputs);
  return std::move(*result);
}

}  // namespace crossrank::torch::detail
