#include "lib/codec/torch/torch_load.hpp"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/storage.hpp>

#include "lib/codec/io/parallel_for.hpp"
#include "lib/tensor/heap_storage.hpp"

namespace crossrank::codec {
namespace {

// A view may repeat its elements. This limits the size of the tensors relative to the file.
constexpr std::uint64_t max_growth = 16;
constexpr std::uint64_t growth_floor = std::uint64_t{64} << 20;

void check_growth(TorchArchive const& archive, std::span<NamedTorchTensor const> tensors) {
  std::uint64_t total = 0;
  auto const max = archive.bytes_on_disk() * max_growth + growth_floor;
  for (auto const& [name, tensor] : tensors) {
    // Dense tensors view their storage and need no memory of their own.
    if (!tensor->view.is_dense() && __builtin_add_overflow(total, tensor->nbytes, &total)) total = ~std::uint64_t{0};
    if (total <= max) continue;
    throw FormatError({.operation = "torch archive read",
                       .message = "the tensors repeat their elements too often",
                       .expected = "at most " + std::to_string(max) + " bytes",
                       .got = std::to_string(total) + " with \"" + name + "\"",
                       .resource = archive.name(),
                       .hint = "save tensor.contiguous(), or read this tensor in parts",
                       .section = "data.pkl"});
  }
}

/// The requested storages by index.
using Storages = std::map<std::uint32_t, std::shared_ptr<HeapStorage>>;

}  // namespace

StateDict load_tensors(TorchArchive const& archive, std::span<NamedTorchTensor const> tensors) {
  check_growth(archive, tensors);
  Storages storages;
  std::uint64_t bytes = 0;
  for (auto const& [name, tensor] : tensors) {
    auto& storage = storages[tensor->storage];
    if (storage) continue;
    auto const size = archive.storages()[tensor->storage].bytes;
    storage = std::make_shared<HeapStorage>(size);
    bytes += size;
  }
  std::vector<Storages::value_type const*> units;
  for (auto const& storage : storages) units.push_back(&storage);
  parallel_for(units.size(), bytes, [&](std::size_t i) {
    auto const& [number, storage] = *units[i];
    archive.read_storage(number, {storage->data(), storage->size_bytes()});
  });

  StateDict weights;
  weights.reserve(tensors.size());
  for (auto const& [name, tensor] : tensors) {
    auto const& storage = storages.at(tensor->storage);
    if (tensor->view.is_dense()) {
      weights.insert_or_assign(name,
                               spi::tensor_from_storage(storage, tensor->view.first, tensor->shape, tensor->dtype));
      continue;
    }
    auto copy = Tensor::empty(tensor->shape, tensor->dtype);
    MemorySource const source("", storage);
    ReadWindow window(source, 0, storage->size_bytes());
    read_strided(window, tensor->view, 0, copy.mutable_bytes());
    weights.insert_or_assign(name, std::move(copy));
  }
  return weights;
}

}  // namespace crossrank::codec
