#include <crossrank/tensor_dict.hpp>

#include <algorithm>
#include <string>

namespace crossrank {
namespace {

std::string kind_of(TensorDict::Value const& value) {
  if (value.tensor() != nullptr) return "a tensor";
  if (value.dict() != nullptr) return "a dictionary";
  if (value.list() != nullptr) return "a list";
  return std::string("a JSON ") + value.json()->type_name();
}

[[noreturn]] void refuse_kind(std::string_view key, char const* wanted, TensorDict::Value const& value) {
  throw UsageError({.operation = "TensorDict",
                    .message = "the value is of another kind",
                    .expected = wanted,
                    .got = kind_of(value),
                    .resource = std::string(key)});
}

/// Returns the first few keys, quoted. A dictionary may have thousands.
std::string some_keys(TensorDict const& dict) {
  constexpr std::size_t most = 8;
  std::string text;
  std::size_t told = 0;
  for (auto const& entry : dict) {
    if (++told > most) return text + " and " + std::to_string(dict.size() - most) + " more";
    text += (text.empty() ? "\"" : ", \"") + entry.first + "\"";
  }
  return text.empty() ? "an empty dictionary" : text;
}

}  // namespace

TensorDict::TensorDict() noexcept = default;
TensorDict::TensorDict(TensorDict const&) = default;
TensorDict::TensorDict(TensorDict&&) noexcept = default;
TensorDict& TensorDict::operator=(TensorDict const&) = default;
TensorDict& TensorDict::operator=(TensorDict&&) noexcept = default;
TensorDict::~TensorDict() = default;

TensorDict::TensorDict(std::initializer_list<value_type> entries) {
  for (auto const& [key, value] : entries) set(key, value);
}

TensorDict::Value const* TensorDict::find(std::string_view key) const noexcept {
  auto const found =
      std::find_if(entries_.begin(), entries_.end(), [&](value_type const& entry) { return entry.first == key; });
  return found == entries_.end() ? nullptr : &found->second;
}

TensorDict::Value const& TensorDict::at(std::string_view key) const {
  if (auto const* found = find(key)) return *found;
  throw UsageError({.operation = "TensorDict",
                    .message = "the key does not exist",
                    .got = some_keys(*this),
                    .resource = std::string(key)});
}

Tensor const& TensorDict::tensor(std::string_view key) const {
  auto const& value = at(key);
  if (auto const* held = value.tensor()) return *held;
  refuse_kind(key, "a tensor", value);
}

TensorDict const& TensorDict::dict(std::string_view key) const {
  auto const& value = at(key);
  if (auto const* held = value.dict()) return *held;
  refuse_kind(key, "a dictionary", value);
}

TensorDict::List const& TensorDict::list(std::string_view key) const {
  auto const& value = at(key);
  if (auto const* held = value.list()) return *held;
  refuse_kind(key, "a list", value);
}

Json const& TensorDict::json(std::string_view key) const {
  auto const& value = at(key);
  if (auto const* held = value.json()) return *held;
  refuse_kind(key, "a JSON value", value);
}

void TensorDict::set(std::string key, Value value) {
  auto const found =
      std::find_if(entries_.begin(), entries_.end(), [&](value_type const& entry) { return entry.first == key; });
  if (found == entries_.end()) {
    entries_.emplace_back(std::move(key), std::move(value));
  } else {
    found->second = std::move(value);
  }
}

bool TensorDict::erase(std::string_view key) {
  return std::erase_if(entries_, [&](value_type const& entry) { return entry.first == key; }) > 0;
}

std::size_t TensorDict::size() const noexcept { return entries_.size(); }
TensorDict::value_type const* TensorDict::begin() const noexcept { return entries_.data(); }
TensorDict::value_type const* TensorDict::end() const noexcept { return entries_.data() + entries_.size(); }

void TensorDict::refuse_conversion(std::string_view key, Json const& value, char const* why) {
  throw UsageError({.operation = "TensorDict.get",
                    .message = "the value cannot be converted",
                    .got = value.type_name(),
                    .resource = std::string(key),
                    .system = why});
}

}  // namespace crossrank
