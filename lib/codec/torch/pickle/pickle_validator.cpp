#include "lib/codec/torch/pickle/pickle_validator.hpp"

#include <algorithm>
#include <tuple>

#include "lib/codec/json/json_text.hpp"

namespace crossrank::codec {
namespace {

enum class Visit : std::uint8_t { never, open, done };

/// Walks depth first without recursion, because the depth may be too large.
class PickleValidator {
 public:
  PickleValidator(PickleTree const& tree, PickleOptions const& options)
      : tree_(tree), options_(options), visits_(tree.nodes.size(), Visit::never), expanded_(tree.nodes.size(), 0) {}

  void walk() {
    enter(tree_.root);
    while (!path_.empty()) {
      auto& [id, next] = path_.back();
      auto const& items = tree_.nodes[id].items;
      if (next == items.size()) {
        leave(id);
        path_.pop_back();
        continue;
      }
      auto const child = items[next++];
      if (visits_[child] == Visit::open) refuse_pickle(options_, tree_.nodes[child].at, "a value contains itself");
      if (visits_[child] == Visit::never) enter(child);
    }
  }

 private:
  struct Step {
    PickleId id;
    std::size_t next;
  };

  void enter(PickleId id) {
    if (path_.size() == options_.limits.depth) {
      refuse_pickle(options_, tree_.nodes[id].at,
                    "values are nested deeper than " + std::to_string(options_.limits.depth) + " levels");
    }
    visits_[id] = Visit::open;
    path_.push_back({id, 0});
  }

  void leave(PickleId id) {
    auto const& node = tree_.nodes[id];
    std::uint64_t total = 1;
    for (auto const item : node.items) total += expanded_[item];  // each is below the limit: the sum cannot overflow
    if (total > options_.limits.expanded) {
      refuse_pickle(options_, node.at,
                    "the number of values, counting shared ones at each use, exceeds " +
                        std::to_string(options_.limits.expanded));
    }
    expanded_[id] = total;
    visits_[id] = Visit::done;
    if (node.kind == PickleKind::dict) check_keys(node);
  }

  void check_keys(PickleNode const& dict) const {
    using Key = std::tuple<PickleKind, std::string_view, std::uint64_t>;
    std::vector<Key> keys;
    keys.reserve(dict.items.size() / 2);
    for (std::size_t i = 0; i < dict.items.size(); i += 2) {
      auto const& key = tree_.nodes[dict.items[i]];
      if (key.kind == PickleKind::dict || key.kind == PickleKind::list || key.kind == PickleKind::set)
        refuse_pickle(options_, key.at, std::string("a ") + to_string(key.kind) + " is the key of a dict");
      // The readers of tuples and objects compare these.
      if (key.items.empty() && key.kind != PickleKind::tuple) keys.emplace_back(key.kind, key.text, key.bits);
    }
    std::sort(keys.begin(), keys.end());
    auto const twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice == keys.end()) return;
    refuse_pickle(options_, dict.at,
                  "a dict repeats a key (\"" + printable(std::get<1>(*twice).substr(0, 200)) + "\")");
  }

  PickleTree const& tree_;
  PickleOptions const& options_;
  std::vector<Visit> visits_;
  std::vector<std::uint64_t> expanded_;
  std::vector<Step> path_{};
};

}  // namespace

void validate_pickle(PickleTree const& tree, PickleOptions const& options) { PickleValidator(tree, options).walk(); }

}  // namespace crossrank::codec
