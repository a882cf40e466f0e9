#include "collectives/tensor_dict/dict_codec.hpp"

#include <algorithm>
#include <array>

#include <crossrank/error.hpp>
#include <crossrank/serialize.hpp>

#include "lib/codec/io/checked_size.hpp"
#include "lib/core/as_size.hpp"
#include "lib/device/device_kinds.hpp"
#include "lib/tensor/tensor_checks.hpp"

namespace crossrank {
namespace {

constexpr std::string_view tag = "tensor_dict";
constexpr std::uint32_t version = 2;
constexpr int max_levels = 64;
/// Tensors up to this size travel inside the metadata, because a separate message would cost more.
constexpr std::size_t max_inlined = 1024;

enum class Kind : std::uint8_t { json, none, tensor, inlined_tensor, dict, list };

class Encoder {
 public:
  explicit Encoder(PartsOf const& parts_of) : parts_of_(parts_of) { detail::write_envelope(writer_, tag, version); }

  void dict(TensorDict const& dict, std::string const& path, int level) {
    require_level(level);
    writer_.write_count(dict.size());
    for (auto const& [key, held] : dict) {
      writer_(key);
      value(held, path.empty() ? key : path + "." + key, level);
    }
  }
  [[nodiscard]] DictMetadata take() { return {writer_.take(), std::move(tensors_)}; }

 private:
  static void require_level(int level) {
    if (level < max_levels) return;
    throw UsageError({.operation = "tensor_dict",
                      .message = "the dictionary is nested too deeply",
                      .expected = "at most " + std::to_string(max_levels) + " levels"});
  }

  void value(TensorDict::Value const& held, std::string const& path, int level) {
    if (auto const* tensor = held.tensor()) return leaf(*tensor, path);
    if (auto const* json = held.json()) {
      writer_(Kind::json, *json);
    } else if (auto const* nested = held.dict()) {
      writer_(Kind::dict);
      dict(*nested, path, level + 1);
    } else {
      writer_(Kind::list);
      list(*held.list(), path, level + 1);
    }
  }

  void list(TensorDict::List const& items, std::string const& path, int level) {
    require_level(level);
    writer_.write_count(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) value(items[i], path + "." + std::to_string(i), level);
  }

  void leaf(Tensor const& tensor, std::string const& path) {
    if (!tensor.defined()) return writer_(Kind::none), void();
    require_usable(tensor, "tensor_dict");  // while all ranks can still be told
    int const parts = parts_of_(path, tensor);
    auto const kind = tensor.device().kind;
    bool const small = tensor.nbytes() <= (kind == Device::Kind::cpu ? max_inlined : 0);
    bool const inlined = parts == 1 && small;
    writer_(inlined ? Kind::inlined_tensor : Kind::tensor, kind, tensor.dtype(),
            static_cast<std::uint8_t>(tensor.shape().size()));
    for (auto const length : tensor.shape()) writer_(length);
    if (inlined) {
      if (tensor.nbytes() > 0) writer_.write(tensor.bytes().data(), tensor.nbytes());
      return;
    }
    writer_(static_cast<std::int32_t>(parts));
    tensors_.push_back({tensor, parts == 1 ? TransferMode::whole : TransferMode::in_parts, parts});
  }

  ObjectWriter writer_{};
  PartsOf const& parts_of_;
  std::vector<DictTensor> tensors_{};
};

class Decoder {
 public:
  Decoder(std::span<std::byte const> bytes, MemoryFor const& memory_for) : reader_(bytes), memory_for_(memory_for) {
    detail::check_envelope(reader_, tag, version);
  }

  [[nodiscard]] DecodedDict whole() {
    auto decoded = dict(0);
    reader_.finish();
    return {std::move(decoded), std::move(tensors_)};
  }

 private:
  TensorDict dict(int level) {
    require_level(level);
    TensorDict out;
    for (auto left = reader_.read_count(); left > 0; --left) {
      std::string key;
      reader_(key);
      if (out.contains(key)) reader_.refuse("key", "a key occurs twice", {}, key);
      out.set(std::move(key), value(level));
    }
    return out;
  }

  TensorDict::List list(int level) {
    require_level(level);
    TensorDict::List out;
    for (auto left = reader_.read_count(); left > 0; --left) out.push_back(value(level));
    return out;
  }

  void require_level(int level) const {
    if (level >= max_levels) reader_.refuse("value", "the dictionary is nested too deeply");
  }

  TensorDict::Value value(int level) {
    std::uint8_t kind = 0;
    reader_(kind);
    switch (static_cast<Kind>(kind)) {
      case Kind::json: return reader_.read_json();
      case Kind::none: return Tensor{};
      case Kind::tensor: return leaf(false);
      case Kind::inlined_tensor: return leaf(true);
      case Kind::dict: return dict(level + 1);
      case Kind::list: return list(level + 1);
    }
    reader_.refuse("value", "a value has an unknown kind", "0 to 5", std::to_string(kind));
  }

  Tensor leaf(bool inlined) {
    std::uint8_t device = 0;
    std::uint8_t dtype = 0;
    std::uint8_t rank = 0;
    reader_(device, dtype, rank);
    auto const known_kind = device::kind_of(device);
    if (!known_kind)
      reader_.refuse("device", "the kind of device is unknown", "below " + std::to_string(device::all_kinds.size()),
                     std::to_string(device));
    auto const kind = *known_kind;
    if (dtype >= dtype_count) reader_.refuse("dtype", "the dtype is unknown", "0 to 21", std::to_string(dtype));
    if (rank > Shape::max_rank) reader_.refuse("shape", "too many dimensions", "16", std::to_string(rank));
    std::array<std::int64_t, Shape::max_rank> lengths{};
    for (std::size_t i = 0; i < rank; ++i) {
      reader_(lengths[i]);
      if (lengths[i] < 0) reader_.refuse("shape", "a length is negative", {}, std::to_string(lengths[i]));
    }
    std::span<std::int64_t const> const shape(lengths.data(), rank);
    std::uint64_t bytes = 0;
    if (codec::checked_byte_size(shape, bits_of(static_cast<Dtype>(dtype)), bytes) != codec::SizeStatus::fits)
      reader_.refuse("shape", "the size of a tensor overflows or splits a byte");
    if (inlined && bytes > std::min<std::uint64_t>(reader_.remaining(), max_inlined))
      reader_.refuse("tensor", "a tensor is cut off", std::to_string(bytes) + " bytes");
    if (!inlined) return follow(memory_for_(Shape(shape), static_cast<Dtype>(dtype), kind));
    if (kind != Device::Kind::cpu && bytes > 0)
      reader_.refuse("tensor", "a tensor on a device is inside the metadata", "0 bytes", std::to_string(bytes));
    if (bytes == 0) return memory_for_(Shape(shape), static_cast<Dtype>(dtype), kind);
    auto tensor = Tensor::empty(Shape(shape), static_cast<Dtype>(dtype));
    reader_.read(tensor.mutable_bytes().data(), tensor.nbytes());
    return tensor;
  }

  Tensor follow(Tensor tensor) {
    std::int32_t parts = 0;
    reader_(parts);
    if (parts < 1 || tensor.nbytes() % as_size(parts) != 0) {
      reader_.refuse("tensor", "the tensor cannot be divided into that many parts",
                     std::to_string(tensor.nbytes()) + " bytes", std::to_string(parts) + " parts");
    }
    tensors_.push_back({tensor, parts == 1 ? TransferMode::whole : TransferMode::in_parts, parts});
    return tensor;
  }

  ObjectReader reader_;
  MemoryFor const& memory_for_;
  std::vector<DictTensor> tensors_{};
};

}  // namespace

Device own_device(Device::Kind kind) {
  if (kind == Device::Kind::cpu) return Device::cpu();
  auto const own = default_device();
  return own.kind == kind ? own : Device{kind, 0};
}

Tensor memory_for_tensor(Shape const& shape, Dtype dtype, Device::Kind kind) {
  if (kind == Device::Kind::cpu) return Tensor::empty(shape, dtype);
  return Tensor::empty(shape, dtype, own_device(kind));
}

DictMetadata encode_dict(TensorDict const& dict, PartsOf const& parts_of) {
  Encoder encoder(parts_of);
  encoder.dict(dict, {}, 0);
  return encoder.take();
}

DecodedDict decode_dict(std::span<std::byte const> bytes, MemoryFor const& memory_for) {
  return Decoder(bytes, memory_for).whole();
}

}  // namespace crossrank
