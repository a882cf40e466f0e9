#include <crossrank/tensor_dict.hpp>

#include <algorithm>

namespace crossrank {
namespace {

[[noreturn]] void refuse_kind(std::string_view key, char const* wanted) {
  throw UsageError({.operation = "TensorDict",
                    .message = "the value is of another kind",
                    .expected = wanted,
                    .resource = std::string(key)});
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
                    .message = "there is no such key",
                    .got = std::to_string(entries_.size()) + " others",
                    .resource = std::string(key)});
}

Tensor const& TensorDict::tensor(std::string_view key) const {
  if (auto const* held = at(key).tensor()) return *held;
  refuse_kind(key, "a tensor");
}

TensorDict const& TensorDict::dict(std::string_view key) const {
  if (auto const* held = at(key).dict()) return *held;
  refuse_kind(key, "a dictionary");
}

TensorDict::List const& TensorDict::list(std::string_view key) const {
  if (auto const* held = at(key).list()) return *held;
  refuse_kind(key, "a list");
}

Json const& TensorDict::json(std::string_view key) const {
  if (auto const* held = at(key).json()) return *held;
  refuse_kind(key, "a JSON value");
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
                    .message = "the value does not convert",
                    .got = value.type_name(),
                    .resource = std::string(key),
                    .system = why});
}

}  // namespace crossrank
