#include "lib/codec/json/json_builder.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>

#include "lib/codec/json/counting_input.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/text/json_members.hpp"

namespace crossrank::codec {
namespace {

using Members = Json::object_t::Container;

/// Returns whether the object is small and its keys differ, so that it need not be sorted.
bool are_few_and_different(Members const& members) {
  constexpr std::size_t few = 8;
  if (members.size() > few) return false;
  for (std::size_t i = 1; i < members.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (members[i].first == members[j].first) return false;
    }
  }
  return true;
}

/// Returns the positions of the members, sorted by key, then by position.
std::vector<std::size_t> sorted_by_key(Members const& members) {
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    auto const comparison = members[a].first.compare(members[b].first);
    return comparison != 0 ? comparison < 0 : a < b;
  });
  return order;
}

/// Returns one member per key, with the last value at the position of the first.
Members last_of_each(Members& members, std::vector<std::size_t> const& order) {
  constexpr auto dropped = ~std::size_t{0};
  std::vector<std::size_t> value_at(members.size(), dropped);
  for (std::size_t i = 0; i < order.size();) {
    auto last = i;
    while (last + 1 < order.size() && members[order[last + 1]].first == members[order[i]].first) ++last;
    value_at[order[i]] = order[last];
    i = last + 1;
  }
  Members kept;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (value_at[i] != dropped) kept.emplace_back(members[i].first, std::move(members[value_at[i]].second));
  }
  return kept;
}

}  // namespace

Json JsonBuilder::parse(std::string_view text) {
  begin_ = text.data();
  cursor_ = text.data();
  if (text.size() > limits_.bytes) {
    refuse(limits_.bytes, "the document is too large: " + std::to_string(text.size()) + " bytes, more than " +
                              std::to_string(limits_.bytes));
  }
  // nlohmann's parser treats NUL as the end of input and skips a byte order mark.
  if (auto const nul = text.find('\0'); nul != std::string_view::npos) refuse(nul, "the document contains NUL");
  if (text.starts_with("\xef\xbb\xbf")) refuse(0, "the document begins with a byte order mark");
  Json::sax_parse(CountingInput(text.data(), &cursor_), CountingInput(text.data() + text.size(), nullptr), this);
  return std::move(root_);
}

bool JsonBuilder::number_float(double held, std::string const& digits) {
  // The parser gives the decimal point of the program's locale.
  if (digits.find_first_not_of("-0123456789") == std::string::npos) take_long_integer(held, digits);
  return add(held);
}

bool JsonBuilder::binary(Json::binary_t&) { refuse_here("JSON text cannot contain binary values"); }

bool JsonBuilder::key(std::string& held) {
  key_ = std::move(held);
  return true;
}

bool JsonBuilder::end_object() {
  resolve_repeats(*stack_.back());
  finish_object(*stack_.back());
  stack_.pop_back();
  return true;
}

bool JsonBuilder::end_array() {
  stack_.pop_back();
  return true;
}

bool JsonBuilder::parse_error(std::size_t position, std::string const&, Json::exception const& error) {
  refuse(position, "malformed JSON", printable(error.what()));
}

void JsonBuilder::finish_object(Json&) {}

void JsonBuilder::take_long_integer(double held, std::string const& digits) {
  std::array<char, 512> exact{};
  auto const length = std::snprintf(exact.data(), exact.size(), "%.0f", held);
  if (std::string_view(exact.data(), as_size(length)) != digits) refuse_long_integer();
}

void JsonBuilder::refuse_long_integer() const { refuse_here("an integer does not fit in 64 bits"); }

void JsonBuilder::refuse(std::size_t offset, std::string message, std::string system) const {
  auto info = about_;
  info.message = std::move(message);
  info.system = std::move(system);
  info.offset = offset;
  throw FormatError(std::move(info));
}

void JsonBuilder::refuse_here(std::string message) const { refuse(as_size(cursor_ - begin_), std::move(message)); }

bool JsonBuilder::open(Json value) {
  if (stack_.size() >= limits_.depth)
    refuse_here("the nesting is too deep: more than " + std::to_string(limits_.depth) + " levels");
  stack_.push_back(place(std::move(value)));
  return true;
}

bool JsonBuilder::add(Json value) {
  place(std::move(value));
  return true;
}

Json* JsonBuilder::place(Json value) {
  if (++values_ > limits_.values) refuse_here("too many values: more than " + std::to_string(limits_.values));
  if (stack_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  auto& parent = *stack_.back();
  if (parent.is_object()) return &append_member(parent, std::move(key_), std::move(value));
  parent.push_back(std::move(value));
  return &parent.back();
}

void JsonBuilder::resolve_repeats(Json& object) const {
  auto& members = static_cast<Members&>(object.get_ref<Json::object_t&>());
  if (are_few_and_different(members)) return;
  auto const order = sorted_by_key(members);
  auto const same = [&](auto a, auto b) { return members[a].first == members[b].first; };
  auto const repeated = std::adjacent_find(order.begin(), order.end(), same);
  if (repeated == order.end()) return;
  if (repeated_ == RepeatedKey::refuse)
    refuse_here("an object repeats the key \"" + printable(members[*repeated].first.substr(0, 80)) + "\"");
  members = last_of_each(members, order);
}

}  // namespace crossrank::codec
