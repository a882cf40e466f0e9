#include <crossrank/tensor_dict.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "lib/core/text/list_text.hpp"
#include "lib/core/text/name_hash.hpp"
#include "lib/core/text/nearest_name.hpp"

namespace crossrank {
namespace {

// Up to this number of entries, comparing all keys is faster than hashing one.
constexpr std::size_t max_unindexed = 16;

std::string kind_of(TensorDict::Value const& value) {
  if (value.tensor() != nullptr) return "a tensor";
  if (value.dict() != nullptr) return "a dictionary";
  if (value.list() != nullptr) return "a list";
  return std::string("a JSON ") + value.json()->type_name();
}

/// Returns the value of `key` that `member` returns. Throws `UsageError` if the value is of another kind than `wanted`.
template <class T>
T const& value_as(TensorDict const& dict, std::string_view key, T const* (TensorDict::Value::*member)() const noexcept,
                  char const* wanted) {
  auto const& value = dict.at(key);
  if (auto const* const held = (value.*member)()) return *held;
  throw UsageError({.operation = "TensorDict",
                    .message = "the value is of another kind",
                    .expected = wanted,
                    .got = kind_of(value),
                    .resource = std::string(key)});
}

/// Returns the first few keys, quoted. A dictionary may have thousands.
std::string some_keys(TensorDict const& dict) {
  if (dict.empty()) return "an empty dictionary";
  std::vector<std::string> keys;
  for (auto const& entry : dict) keys.push_back('"' + entry.first + '"');
  return list_text(keys);
}

}  // namespace

TensorDict::TensorDict() noexcept = default;
TensorDict::TensorDict(TensorDict const&) = default;
TensorDict::TensorDict(TensorDict&&) noexcept = default;

// The other dictionary may be inside this one.
TensorDict& TensorDict::operator=(TensorDict const& other) { return *this = TensorDict(other); }
TensorDict& TensorDict::operator=(TensorDict&& other) noexcept {
  TensorDict taken(std::move(other));
  entries_.swap(taken.entries_);
  index_.swap(taken.index_);
  return *this;
}

TensorDict::~TensorDict() = default;

TensorDict::TensorDict(std::initializer_list<value_type> entries) {
  for (auto const& [key, value] : entries) set(key, value);
}

TensorDict::Value const* TensorDict::find(std::string_view key) const noexcept {
  if (!index_.empty()) {
    auto const position = index_[probe(key)];
    return position == 0 ? nullptr : &entries_[position - 1].second;
  }
  auto const found =
      std::find_if(entries_.begin(), entries_.end(), [&](value_type const& entry) { return entry.first == key; });
  return found == entries_.end() ? nullptr : &found->second;
}

std::size_t TensorDict::probe(std::string_view key) const noexcept {
  auto const mask = index_.size() - 1;
  for (auto cell = hash_name(key) & mask;; cell = (cell + 1) & mask) {
    if (index_[cell] == 0 || entries_[index_[cell] - 1].first == key) return cell;
  }
}

void TensorDict::index_all(std::size_t count) {
  index_.clear();
  if (count <= max_unindexed) return;
  // At most half of the cells are in use.
  auto cells = max_unindexed;
  while (cells < 2 * count) cells *= 2;
  index_.resize(cells);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    index_[probe(entries_[i].first)] = static_cast<std::uint32_t>(i + 1);
}

TensorDict::Value const& TensorDict::at(std::string_view key) const {
  if (auto const* found = find(key)) return *found;
  std::vector<std::string> keys;
  for (auto const& entry : entries_) keys.push_back(entry.first);
  throw UsageError({.operation = "TensorDict",
                    .message = "the key does not exist",
                    .got = some_keys(*this),
                    .resource = std::string(key),
                    .hint = did_you_mean(key, keys)});
}

Tensor const& TensorDict::tensor(std::string_view key) const {
  return value_as(*this, key, &Value::tensor, "a tensor");
}

TensorDict const& TensorDict::dict(std::string_view key) const {
  return value_as(*this, key, &Value::dict, "a dictionary");
}

TensorDict::List const& TensorDict::list(std::string_view key) const {
  return value_as(*this, key, &Value::list, "a list");
}

Json const& TensorDict::json(std::string_view key) const { return value_as(*this, key, &Value::json, "a JSON value"); }

void TensorDict::set(std::string key, Value value) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): this object is not const
  if (auto* const found = const_cast<Value*>(find(key))) {
    *found = std::move(value);
    return;
  }
  auto const count = entries_.size() + 1;
  if (count > max_unindexed && index_.size() < 2 * count) index_all(2 * count);
  entries_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) index_[probe(entries_.back().first)] = static_cast<std::uint32_t>(count);
}

bool TensorDict::erase(std::string_view key) {
  // `key` may be that of the entry.
  auto const found =
      std::find_if(entries_.begin(), entries_.end(), [&](value_type const& entry) { return entry.first == key; });
  if (found == entries_.end()) return false;
  entries_.erase(found);
  index_all(entries_.size());
  return true;
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
