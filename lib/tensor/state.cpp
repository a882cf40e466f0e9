#include <crossrank/state.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/text/name_hash.hpp"
#include "lib/core/text/nearest_name.hpp"

namespace crossrank {

namespace {

constexpr std::size_t least_index = 16;
constexpr std::size_t least_chunk = 8;

}  // namespace

StateDict::const_iterator::const_iterator(Slot const* at, Slot const* end) noexcept : at_(at), end_(end) {
  while (at_ != end_ && *at_ == nullptr) ++at_;
}

StateDict::const_iterator::reference StateDict::const_iterator::operator*() const noexcept { return **at_; }

StateDict::const_iterator& StateDict::const_iterator::operator++() noexcept {
  *this = const_iterator(at_ + 1, end_);
  return *this;
}

StateDict::const_iterator StateDict::const_iterator::operator++(int) noexcept {
  auto const before = *this;
  ++*this;
  return before;
}

// NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): the dictionary is not const
StateDict::iterator::reference StateDict::iterator::operator*() const noexcept { return const_cast<reference>(*at_); }

StateDict::iterator& StateDict::iterator::operator++() noexcept {
  ++at_;
  return *this;
}

StateDict::iterator StateDict::iterator::operator++(int) noexcept {
  auto const before = *this;
  ++at_;
  return before;
}

StateDict::StateDict() noexcept = default;
StateDict::~StateDict() = default;

StateDict::StateDict(StateDict const& other) {
  reserve(other.size());
  for (auto const& [name, tensor] : other) insert_or_assign(name, tensor);
}

StateDict& StateDict::operator=(StateDict const& other) {
  if (this != &other) *this = StateDict(other);
  return *this;
}

StateDict::StateDict(StateDict&& other) noexcept
    : chunks_(std::move(other.chunks_)),
      free_(std::move(other.free_)),
      slots_(std::move(other.slots_)),
      index_(std::move(other.index_)),
      size_(std::exchange(other.size_, 0)) {
  other.clear();
}

StateDict& StateDict::operator=(StateDict&& other) noexcept {
  if (this == &other) return *this;
  chunks_ = std::move(other.chunks_);
  free_ = std::move(other.free_);
  slots_ = std::move(other.slots_);
  index_ = std::move(other.index_);
  size_ = std::exchange(other.size_, 0);
  other.clear();
  return *this;
}

StateDict::StateDict(std::initializer_list<value_type> entries) {
  reserve(entries.size());
  for (auto const& [name, tensor] : entries) insert_or_assign(name, tensor);
}

/// Returns the cell in `index_` of the entry called `name`, or the free cell for it. `index_` must not be empty.
std::size_t StateDict::probe(std::string_view name) const noexcept {
  auto const mask = index_.size() - 1;
  for (auto cell = hash_name(name) & mask;; cell = (cell + 1) & mask) {
    if (index_[cell] == 0) return cell;
    auto const& slot = slots_[index_[cell] - 1];
    if (slot != nullptr && slot->first == name) return cell;
  }
}

void StateDict::rebuild(std::size_t count) {
  count = std::max(count, size_);
  std::erase(slots_, nullptr);
  slots_.reserve(count);
  auto cells = least_index;
  while (cells < 2 * count) cells *= 2;
  index_.assign(cells, 0);
  for (std::size_t i = 0; i < slots_.size(); ++i) index_[probe(slots_[i]->first)] = static_cast<std::uint32_t>(i + 1);
}

void StateDict::reserve(std::size_t count) {
  if (index_.size() < 2 * count || slots_.capacity() < count) rebuild(count);
  auto spare = free_.size();
  if (!chunks_.empty()) spare += chunks_.back().capacity() - chunks_.back().size();
  if (size_ + spare < count) add_chunk(count - size_ - free_.size());
}

void StateDict::add_chunk(std::size_t count) {
  std::vector<value_type> chunk;
  chunk.reserve(count);
  chunks_.push_back(std::move(chunk));
}

StateDict::Slot StateDict::make_entry(std::string&& name, Tensor& tensor) {
  if (!free_.empty()) {
    auto* const entry = free_.back();
    free_.pop_back();
    std::destroy_at(entry);
    return std::construct_at(entry, std::move(name), std::move(tensor));
  }
  if (chunks_.empty() || chunks_.back().size() == chunks_.back().capacity()) add_chunk(std::max(least_chunk, size_));
  return &chunks_.back().emplace_back(std::move(name), std::move(tensor));
}

Tensor const* StateDict::find(std::string_view name) const noexcept {
  if (index_.empty()) return nullptr;
  auto const position = index_[probe(name)];
  return position == 0 ? nullptr : &slots_[position - 1]->second;
}

Tensor const& StateDict::at(std::string_view name) const {
  if (auto const* found = find(name)) return *found;
  std::vector<std::string> names;
  for (auto const& [known, tensor] : *this) names.push_back(known);
  throw UsageError({.operation = "StateDict.at",
                    .message = "no tensor has this name",
                    .got = std::to_string(size_) + (size_ == 1 ? " other tensor" : " other tensors"),
                    .resource = std::string(name),
                    .hint = did_you_mean(name, names)});
}

// NOLINTBEGIN(cppcoreguidelines-pro-type-const-cast): this object is not const
Tensor& StateDict::at(std::string_view name) { return const_cast<Tensor&>(std::as_const(*this).at(name)); }
Tensor* StateDict::find(std::string_view name) noexcept { return const_cast<Tensor*>(std::as_const(*this).find(name)); }
// NOLINTEND(cppcoreguidelines-pro-type-const-cast)

std::pair<StateDict::Slot const*, bool> StateDict::try_emplace(std::string&& name, Tensor& tensor) {
  auto cell = index_.empty() ? 0 : probe(name);
  if (!index_.empty() && index_[cell] != 0) return {&slots_[index_[cell] - 1], false};
  if (index_.size() < 2 * (slots_.size() + 1)) {
    rebuild(2 * (slots_.size() + 1));
    cell = probe(name);
  }
  slots_.push_back(nullptr);
  slots_.back() = make_entry(std::move(name), tensor);
  index_[cell] = static_cast<std::uint32_t>(slots_.size());
  ++size_;
  return {&slots_.back(), true};
}

Tensor& StateDict::operator[](std::string_view name) {
  if (auto* const found = find(name)) return *found;
  Tensor none;
  return (*try_emplace(std::string(name), none).first)->second;
}

std::pair<StateDict::iterator, bool> StateDict::insert(std::string name, Tensor tensor) {
  auto const [slot, added] = try_emplace(std::move(name), tensor);
  return {iterator(const_iterator(slot, slots_.data() + slots_.size())), added};
}

void StateDict::insert_or_assign(std::string name, Tensor tensor) {
  auto const [slot, added] = try_emplace(std::move(name), tensor);
  if (!added) (*slot)->second = std::move(tensor);
}

bool StateDict::erase(std::string_view name) {
  if (index_.empty()) return false;
  auto const position = index_[probe(name)];
  if (position == 0) return false;
  // The cell keeps pointing at the hole, so that probes continue past it.
  auto& slot = slots_[position - 1];
  free_.push_back(slot);
  std::exchange(slot, nullptr)->second = Tensor();
  --size_;
  if (slots_.size() >= least_index && size_ < slots_.size() / 2) rebuild(size_);
  return true;
}

void StateDict::clear() noexcept {
  chunks_.clear();
  free_.clear();
  slots_.clear();
  index_.clear();
  size_ = 0;
}

std::size_t StateDict::nbytes() const noexcept {
  std::size_t total = 0;
  for (auto const& [name, tensor] : *this) total += tensor.nbytes();
  return total;
}

StateDict::const_iterator StateDict::begin() const noexcept { return {slots_.data(), slots_.data() + slots_.size()}; }
StateDict::const_iterator StateDict::end() const noexcept {
  return {slots_.data() + slots_.size(), slots_.data() + slots_.size()};
}
StateDict::iterator StateDict::begin() noexcept { return iterator(std::as_const(*this).begin()); }
StateDict::iterator StateDict::end() noexcept { return iterator(std::as_const(*this).end()); }

}  // namespace crossrank
