#include "json.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>

#include "errors.hpp"

namespace crossrank::python {
namespace {

namespace nb = nanobind;

std::string text_of(nb::handle value) {
  Py_ssize_t size = 0;
  char const* const text = PyUnicode_AsUTF8AndSize(value.ptr(), &size);
  if (text == nullptr) throw nb::python_error();
  return {text, static_cast<std::size_t>(size)};
}

Json integer(nb::handle value) {
  int overflow = 0;
  long long const number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (overflow == 0) return static_cast<std::int64_t>(number);
  if (overflow > 0) {
    auto const wide = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return static_cast<std::uint64_t>(wide);
    PyErr_Clear();
  }
  refuse("to JSON", "the integer does not fit in 64 bits", {}, nb::cast<std::string>(nb::str(value)),
         "send it as text");
}

Json binary(nb::handle value) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(value.ptr(), &data, &size) != 0) throw nb::python_error();
  auto const* const bytes = reinterpret_cast<std::uint8_t const*>(data);
  return Json::binary(std::vector<std::uint8_t>(bytes, bytes + size));
}

/// Returns whether a value is a scalar of numpy or a tensor of torch without dimensions.
bool is_scalar(nb::handle value) {
  return nb::hasattr(value, "dtype") && nb::hasattr(value, "item") && nb::cast<int>(value.attr("ndim")) == 0;
}

Json convert(nb::handle value, int level) {
  if (level > max_levels) refuse("to JSON", "the value has more than 64 levels");
  if (value.is_none()) return nullptr;
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyLong_Check(value.ptr())) return integer(value);
  if (PyFloat_Check(value.ptr())) return PyFloat_AsDouble(value.ptr());
  if (PyUnicode_Check(value.ptr())) return text_of(value);
  if (PyBytes_Check(value.ptr())) return binary(value);
  if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
    Json list = Json::array();
    for (auto const item : value) list.push_back(convert(item, level + 1));
    return list;
  }
  if (PyDict_Check(value.ptr())) {
    Json object = Json::object();
    for (auto const [key, item] : nb::borrow<nb::dict>(value)) {
      if (!PyUnicode_Check(key.ptr()))
        refuse("to JSON", "a key of the dictionary is not a str", "str", type_text(key),
               "convert the keys, since JSON has no others");
      object[text_of(key)] = convert(item, level + 1);
    }
    return object;
  }
  if (is_scalar(value)) return convert(value.attr("item")(), level + 1);
  refuse("to JSON", "values of this type are not sent", "None, bool, int, float, str, bytes, list, tuple or dict",
         type_text(value), "pass pickle=True where the call has it, or convert the value");
}

}  // namespace

Json to_json(nb::handle value) { return convert(value, 0); }

nb::object to_python(Json const& value) {
  switch (value.type()) {
    case Json::value_t::boolean: return nb::bool_(value.get<bool>());
    case Json::value_t::number_integer: return nb::int_(value.get<std::int64_t>());
    case Json::value_t::number_unsigned: return nb::int_(value.get<std::uint64_t>());
    case Json::value_t::number_float: return nb::float_(value.get<double>());
    case Json::value_t::string: {
      auto const& text = value.get_ref<std::string const&>();
      return nb::str(text.data(), text.size());
    }
    case Json::value_t::binary: {
      auto const& bytes = value.get_binary();
      return nb::bytes(bytes.data(), bytes.size());
    }
    case Json::value_t::array: {
      nb::list list;
      for (auto const& item : value) list.append(to_python(item));
      return list;
    }
    case Json::value_t::object: {
      nb::dict dict;
      for (auto const& [key, item] : value.items()) dict[nb::str(key.data(), key.size())] = to_python(item);
      return dict;
    }
    default: return nb::none();
  }
}

}  // namespace crossrank::python
