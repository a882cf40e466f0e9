#include "tests/transforms/torch/small_net.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include <torch/optim/adamw.h>
#include <torch/serialize.h>

namespace libtorch_test {

BlockImpl::BlockImpl(std::int64_t width, at::Tensor const& tied) {
  weight = register_parameter("weight", tied.defined() ? tied : at::ones({width, width}));
  bias = register_parameter("bias", at::ones({width}));
}

at::Tensor BlockImpl::forward(at::Tensor const& x) {
  if (on_forward) on_forward();
  return at::tanh(at::linear(x, weight, bias));
}

NetImpl::NetImpl(NetOptions options) : repeats(options.repeats) {
  first = register_module("first", torch::nn::Linear(3, 5));
  for (auto const* name : {"block0", "block1"}) {
    auto const tied = options.tied && !blocks.empty() ? blocks[0]->weight : at::Tensor();
    blocks.push_back(register_module(name, std::make_shared<xr::torch::Unit<BlockImpl>>(5, tied)));
  }
  last = register_module("last", torch::nn::Linear(5, 2));
  scale = register_parameter("scale", at::ones({}));
  if (options.tied_root) mix = register_parameter("mix", blocks[0]->weight);
  if (options.unused) register_parameter("unused", at::ones({7, 2}));
  if (options.buffer) mean = register_buffer("mean", at::full({2}, 0.5 + options.seed));
  to(options.dtype);
  fill(*this, options.seed);
  if (options.frozen) first->bias.set_requires_grad(false);
}

at::Tensor NetImpl::forward(at::Tensor const& x) {
  auto y = at::tanh(first->forward(x));
  if (mix.defined()) y = at::tanh(at::linear(y, mix));
  for (auto const& block : blocks) y = y + block->forward(y);
  if (repeats) y = y + blocks.front()->forward(y);
  if (skip_last) return y.narrow(1, 0, 2) * scale;
  y = last->forward(y) * scale;
  return mean.defined() ? y * mean : y;
}

void fill(torch::nn::Module& module, double seed) {
  at::NoGradGuard const no_grad;
  double at = seed;
  for (auto& parameter : module.parameters()) {
    auto const count = parameter.numel();
    auto values = at::sin(at::arange(count, at::kDouble) * 1.7 + at) * 0.5;
    at += 1.7 * static_cast<double>(count);
    parameter.copy_(values.reshape(parameter.sizes()));
  }
}

at::Tensor inputs(int step, std::int64_t begin, std::int64_t end, at::ScalarType dtype) {
  auto const numbers = at::arange(begin * 3, end * 3, at::kDouble) + 0.3 * step;
  return at::cos(numbers).reshape({end - begin, 3}).to(dtype);
}

at::Tensor targets(std::int64_t begin, std::int64_t end, at::ScalarType dtype) {
  return at::sin(at::arange(begin * 2, end * 2, at::kDouble)).reshape({end - begin, 2}).to(dtype);
}

at::Tensor loss_of(at::Tensor const& output, std::int64_t begin, std::int64_t end) {
  auto const apart = output - targets(begin, end, output.scalar_type());
  return (apart * apart).mean();
}

std::vector<at::Tensor> trained_alone(NetOptions const& options) {
  NetImpl net(options);
  torch::optim::AdamW optimizer(unique_parameters(net), torch::optim::AdamWOptions(0.02));
  train(net, optimizer, 0, 1, options.dtype);
  std::vector<at::Tensor> values;
  for (auto const& parameter : unique_parameters(net)) values.push_back(parameter.detach());
  return values;
}

std::vector<at::Tensor> unique_parameters(torch::nn::Module const& module) {
  std::vector<at::Tensor> all;
  for (auto const& parameter : module.parameters()) {
    auto const same = [&](at::Tensor const& other) { return other.is_same(parameter); };
    if (std::none_of(all.begin(), all.end(), same)) all.push_back(parameter);
  }
  return all;
}

std::vector<at::Tensor> whole(xr::torch::DistributedModule<NetImpl> const& model) {
  auto* const sharded = model.sharded();
  if (sharded == nullptr) return unique_parameters(*model.module());
  std::map<std::string, at::Tensor> by_name;
  sharded->for_each_parameter([&](std::string const& name, xr::Tensor const& value) {
    by_name.emplace(name, xr::torch::to_torch(value.clone()));
  });
  std::vector<at::Tensor> values;
  for (auto const& item : model.module()->named_parameters()) {
    if (auto const found = by_name.find(item.key()); found != by_name.end()) values.push_back(found->second);
  }
  return values;
}

void load_other_values(Net& net) {
  std::stringstream file;
  torch::save(Net(NetOptions{.seed = 5}), file);
  torch::load(net, file);
}

double largest_difference(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes()) return std::numeric_limits<double>::infinity();
    if (a[i].numel() == 0) continue;
    largest = std::max(largest, (a[i].to(at::kDouble) - b[i].to(at::kDouble)).abs().max().item<double>());
  }
  return largest;
}

}  // namespace libtorch_test
