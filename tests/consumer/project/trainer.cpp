#include <cstdio>

#include <crossrank/crossrank.hpp>
#include <crossrank/torch.hpp>
#include <torch/nn/modules/linear.h>

/// Trains a module of LibTorch with the installed headers, in a job of one rank.
int main() {
  torch::nn::Linear const linear(8, 1);
  auto model = crossrank::torch::ddp(linear, crossrank::FakeCollective());
  model.forward(at::ones({2, 8})).sum().backward();
  auto const gradient = crossrank::torch::from_torch(linear->weight.grad());
  if (gradient.as<float>()[7] != 2) return 1;
  std::printf("crossrank %s joined %zu bytes\n", CROSSRANK_VERSION, gradient.nbytes());
  return 0;
}
