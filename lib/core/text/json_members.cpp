#include "lib/core/text/json_members.hpp"

#include <utility>

namespace crossrank {
namespace {

Json::object_t::Container& members_of(Json& object) {
  return static_cast<Json::object_t::Container&>(object.get_ref<Json::object_t&>());
}

}  // namespace

Json& append_member(Json& object, std::string key, Json value) {
  auto& members = members_of(object);
  members.emplace_back(std::move(key), std::move(value));
  return members.back().second;
}

void JsonMembers::set(std::string const& key, Json value) {
  auto& members = members_of(object_);
  auto const [at, is_new] = places_.try_emplace(key, members.size());
  if (is_new) {
    members.emplace_back(key, std::move(value));
  } else {
    members[at->second].second = std::move(value);
  }
}

Json JsonMembers::take() && { return std::move(object_); }

JsonIndex::JsonIndex(Json const& object) {
  auto const& members = object.get_ref<Json::object_t const&>();
  members_.reserve(members.size());
  for (auto const& [key, value] : members) members_.emplace(key, &value);
}

Json const* JsonIndex::find(std::string_view key) const noexcept {
  auto const found = members_.find(key);
  return found == members_.end() ? nullptr : found->second;
}

}  // namespace crossrank
