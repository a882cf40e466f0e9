#include "lib/codec/torch/pickle/pickle_tree.hpp"

namespace crossrank::codec {

char const* to_string(PickleKind kind) noexcept {
  switch (kind) {
    case PickleKind::none: return "None";
    case PickleKind::boolean: return "bool";
    case PickleKind::integer:
    case PickleKind::natural: return "int";
    case PickleKind::real: return "float";
    case PickleKind::text: return "str";
    case PickleKind::bytes: return "bytes";
    case PickleKind::tuple: return "tuple";
    case PickleKind::list: return "list";
    case PickleKind::set: return "set";
    case PickleKind::dict: return "dict";
    case PickleKind::global: return "global";
    case PickleKind::call: return "call";
    case PickleKind::object: return "object";
    case PickleKind::persistent: return "persistent id";
  }
  return "?";
}

std::optional<PickleValue> PickleValue::find(std::string_view key) const noexcept {
  if (is(PickleKind::object) || is(PickleKind::call)) {
    auto const held = state();
    return held && held->is(PickleKind::dict) ? held->find(key) : std::nullopt;
  }
  if (!is(PickleKind::dict)) return std::nullopt;
  for (std::size_t i = 0; i + 1 < size(); i += 2) {
    auto const name = (*this)[i];
    if (name.is(PickleKind::text) && name.text() == key) return (*this)[i + 1];
  }
  return std::nullopt;
}

std::optional<PickleValue> PickleValue::state() const noexcept {
  if ((!is(PickleKind::call) && !is(PickleKind::object)) || size() < 3) return std::nullopt;
  return (*this)[size() - 1];
}

}  // namespace crossrank::codec
