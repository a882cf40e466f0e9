// Shows that LibTorch's headers, libraries and autograd work. CMake builds and runs it.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

int main() {
  torch::nn::Linear linear(2, 1);
  torch::autograd::backward({linear->forward(at::ones({1, 2})).sum()}, {});
  torch::optim::AdamW(linear->parameters()).step();
  return linear->weight.grad().sum().item<double>() == 2 ? 0 : 1;
}
