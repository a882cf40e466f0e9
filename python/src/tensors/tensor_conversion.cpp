#include <charconv>
#include <map>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <crossrank/cuda.hpp>

#include "errors.hpp"
#include "json.hpp"
#include "tensors/streams.hpp"
#include "tensors/tensor.hpp"
#include "tensors/tensor_sources.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

std::optional<Tensor> find_tensor(nb::handle object, Access access) {
  if (nb::isinstance<Tensor>(object)) return nb::cast<Tensor>(object);
  if (auto tensor = tensor_from_torch(object, access)) return tensor;
  if (auto tensor = tensor_from_buffer(object, access)) return tensor;
  return tensor_from_dlpack(object, access);
}

Tensor require_tensor(nb::handle object, Access access) {
  if (object.is_none()) return {};
  if (auto tensor = find_tensor(object, access)) return *std::move(tensor);
  refuse("tensor", "this object is not a tensor", "a torch, numpy or DLPack tensor, or a buffer", type_text(object));
}

/// Values that JSON holds, which are never tensors.
bool is_plain_value(nb::handle object) {
  return object.is_none() || PyBool_Check(object.ptr()) || PyLong_Check(object.ptr()) || PyFloat_Check(object.ptr()) ||
         PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr());
}

TensorDict dict_from(nb::handle dict, int level);

TensorDict::Value value_from(nb::handle object, int level) {
  if (level > max_levels) refuse("tensors", "the value has more than 64 levels");
  if (PyDict_Check(object.ptr())) return dict_from(object, level);
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr())) {
    TensorDict::List list;
    bool plain = true;
    for (auto const item : object) {
      list.push_back(value_from(item, level + 1));
      plain = plain && list.back().json() != nullptr;
    }
    if (plain) return to_json(object);
    return list;
  }
  if (is_plain_value(object)) return to_json(object);
  return require_tensor(object, Access::read);
}

nb::object value_to_python(TensorDict::Value const& value) {
  if (auto const* const tensor = value.tensor()) return to_python(*tensor);
  if (auto const* const dict = value.dict()) return tensor_dict_to_python(*dict);
  if (auto const* const json = value.json()) return to_python(*json);
  nb::list list;
  for (auto const& item : *value.list()) list.append(value_to_python(item));
  return list;
}

nb::dict require_dict(nb::handle object) {
  if (!PyDict_Check(object.ptr())) refuse("tensors", "this object is not a dict", "dict", type_text(object));
  return nb::borrow<nb::dict>(object);
}

std::string require_name(nb::handle key) {
  if (!PyUnicode_Check(key.ptr())) refuse("tensors", "a name is not a str", "str", type_text(key));
  std::string name;
  if (!nb::try_cast(key, name)) refuse("tensors", "a name is not valid Unicode");
  return name;
}

/// Converts a value of a dict. An error names its key, or its path in nested dicts.
template <class Convert>
auto at_key(nb::handle key, Convert const& convert) {
  try {
    return convert();
  } catch (UsageError const& error) {
    auto info = error.info();
    info.resource = printable_text(key) + (info.resource.empty() ? "" : ".") + info.resource;
    throw UsageError(std::move(info));
  }
}

TensorDict dict_from(nb::handle dict, int level) {
  TensorDict tree;
  for (auto const [key, value] : require_dict(dict)) {
    auto name = require_name(key);
    tree.set(std::move(name), at_key(key, [&, value = value] { return value_from(value, level + 1); }));
  }
  return tree;
}

}  // namespace

void refuse_strides() {
  refuse("tensor", "the call writes this tensor, and it is not contiguous", {}, {},
         "pass a contiguous tensor and copy the result");
}

void refuse_read_only() { refuse("tensor", "the call writes this tensor, and it is read-only"); }

void refuse_dtype(std::string name) {
  refuse("tensor", "crossrank does not have this dtype", "a dtype of the safetensors format", std::move(name));
}

Tensor tensor_from(nb::handle object) { return require_tensor(object, Access::read); }

Tensor writable_tensor_from(nb::handle object) { return require_tensor(object, Access::write); }

StateDict state_dict_from(nb::handle dict) {
  StateDict weights;
  // Tied weights are one tensor under two names: they share a storage here too, so that they are sent once.
  std::map<std::tuple<std::byte*, std::size_t>, Tensor> known;
  for (auto const [key, value] : require_dict(dict)) {
    auto tensor = at_key(key, [value = value] { return require_tensor(value, Access::read); });
    if (tensor.nbytes() > 0) {
      auto const [same, is_new] = known.try_emplace({tensor.data(), tensor.nbytes()}, tensor);
      if (!is_new && same->second.dtype() == tensor.dtype()) tensor = same->second.reshape(tensor.shape());
    }
    weights.insert_or_assign(require_name(key), std::move(tensor));
  }
  return weights;
}

nb::dict state_dict_to_python(StateDict const& weights) {
  nb::dict dict;
  for (auto const& [name, tensor] : weights) dict[nb::str(name.data(), name.size())] = to_python(tensor);
  return dict;
}

TensorDict tensor_dict_from(nb::handle dict) { return dict_from(dict, 0); }

nb::dict tensor_dict_to_python(TensorDict const& tree) {
  nb::dict dict;
  for (auto const& [key, value] : tree) dict[nb::str(key.data(), key.size())] = value_to_python(value);
  return dict;
}

nb::object to_python(Tensor const& tensor) {
  if (!tensor.defined()) return nb::none();
  follow_streams_of(tensor.device());
  return nb::cast(tensor);
}

Dtype dtype_named(std::string_view name) {
  if (auto const dtype = parse_dtype(name)) return *dtype;
  refuse_dtype(std::string(name));
}

nb::str name_from(nb::handle object) {
  auto name = PyUnicode_Check(object.ptr()) ? nb::borrow<nb::str>(object) : nb::str(object);
  std::string_view text;
  if (!nb::try_cast(name, text)) refuse("tensor", "a name is not valid Unicode");
  return name;
}

bool names_device(std::string_view text) noexcept { return text == "cpu" || text.starts_with("cuda"); }

Device device_from(nb::handle name) {
  auto const named = name_from(name);
  std::string_view const text = named.c_str();
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") {
    auto const gpu = run_without_gil([] { return default_device(); });
    if (gpu.kind == Device::Kind::cpu) run_without_gil([] { cuda::require_driver(); });
    return gpu.kind == Device::Kind::cpu ? Device::cuda() : gpu;  // the first use says that there is no GPU
  }
  constexpr std::string_view prefix = "cuda:";
  int index = 0;
  auto const* const end = text.data() + text.size();
  if (text.starts_with(prefix)) {
    auto const [last, error] = std::from_chars(text.data() + prefix.size(), end, index);
    if (error == std::errc() && last == end && index >= 0) return Device::cuda(index);
  }
  refuse("device", "this is not the name of a device", "cpu, cuda, or cuda:N", std::string(text));
}

Device followed_device(nb::handle name) {
  auto const device = device_from(name);
  follow_streams_of(device);
  return device;
}

namespace {

/// Reads an integer of Python or of numpy.
std::int64_t length_from(nb::handle length) {
  if (PyIndex_Check(length.ptr()) == 0) refuse("shape", "a length is not an integer", "int", type_text(length));
  auto const number = nb::steal(PyNumber_Index(length.ptr()));
  std::int64_t value = 0;
  if (!number.is_valid()) throw nb::python_error();
  if (!nb::try_cast(number, value)) refuse("shape", "a length does not fit into 64 bits");
  return value;
}

}  // namespace

Shape shape_from(nb::handle lengths) {
  std::vector<std::int64_t> each;
  if (PyIndex_Check(lengths.ptr()) != 0) {
    each.push_back(length_from(lengths));
  } else {
    for (auto const length : lengths) each.push_back(length_from(length));
  }
  return Shape(each);
}

}  // namespace crossrank::python
