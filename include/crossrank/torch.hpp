#pragma once
/// The adapter for LibTorch: tensors without copies, and modules that train on several ranks.
#include <crossrank/torch/distributed_module.hpp>
#include <crossrank/torch/module_model.hpp>
#include <crossrank/torch/tensor.hpp>
#include <crossrank/torch/unit.hpp>
