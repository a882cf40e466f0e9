#include "workspace/nfs/read_only_view.hpp"

#include <memory>
#include <string>
#include <utility>

#include <crossrank/spi/storage.hpp>

namespace crossrank::workspace {
namespace {

class ReadOnlyStorage final : public spi::Storage {
 public:
  ReadOnlyStorage(Tensor tensor, int sender) : tensor_(std::move(tensor)), sender_(sender) {}
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): `frozen_by` makes every write fail
  [[nodiscard]] std::byte* data() noexcept override { return const_cast<std::byte*>(tensor_.data()); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return tensor_.nbytes(); }
  [[nodiscard]] std::string frozen_by() const override {
    return "received from rank " + std::to_string(sender_) + ", through a file";
  }

 private:
  Tensor tensor_;
  int sender_;
};

}  // namespace

Tensor read_only_view(Tensor tensor, int rank) {
  if (!tensor.defined()) return tensor;
  auto const shape = tensor.shape();
  auto const dtype = tensor.dtype();
  return spi::tensor_from_storage(std::make_shared<ReadOnlyStorage>(std::move(tensor), rank), 0, shape, dtype);
}

RankState read_only_view(RankState state, int rank) {
  StateDict weights;
  weights.reserve(state.weights.size());
  for (auto const& [name, tensor] : state.weights) weights.insert_or_assign(name, read_only_view(tensor, rank));
  state.weights = std::move(weights);
  return state;
}

}  // namespace crossrank::workspace
