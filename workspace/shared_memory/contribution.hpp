#pragma once
#include <cstddef>
#include <span>
#include <string_view>

#include <crossrank/json.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::workspace {

struct NamedTensor {
  std::string_view name{};
  Tensor const* tensor = nullptr;
};

/// The input of one rank to a gather: an optional config, and tensors, some of which may be undefined.
struct Contribution {
  Json const* config = nullptr;
  std::span<NamedTensor const> tensors{};
};

/// Receives the pieces of a contribution.
class Collector {
 public:
  virtual ~Collector() = default;
  virtual void expect(std::size_t tensors) = 0;
  virtual void config(Json value) = 0;
  virtual void tensor(std::string_view name, Tensor value) = 0;
};

}  // namespace crossrank::workspace
