#include "workspace/checkpoint/source/model_key.hpp"

#include <algorithm>
#include <array>
#include <set>

#include <crossrank/error.hpp>

#include "lib/core/text/list_text.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr int max_wrappers = 4;

constexpr std::array<std::string_view, 6> models{
    "state_dict", "model_state_dict", "model_state", "model_weights", "model", "module"};
// A key with one of these words is training state: "optimizer_states", "cuda_rng_state".
constexpr std::array<std::string_view, 10> training_words{
    "optim", "optimizer", "optimizers", "scheduler", "schedulers", "scaler", "rng", "ema", "amp", "random"};
constexpr std::array<std::string_view, 20> training_keys{
    "opt",        "opt_state",  "callbacks", "loops",        "trainer", "trainer_state",   "train_state",
    "dataloader", "sampler",    "metrics",   "best_metrics", "step",    "global_step",     "epoch",
    "iteration",  "iterations", "loss",      "losses",       "args",    "hyper_parameters"};

bool has_word(std::string_view key, std::string_view word) {
  for (auto at = key.find(word); at != std::string_view::npos; at = key.find(word, at + 1)) {
    auto const end = at + word.size();
    if ((at == 0 || key[at - 1] == '_') && (end == key.size() || key[end] == '_')) return true;
  }
  return false;
}

std::string dotted(std::vector<std::string> way, std::string const& key) {
  way.push_back(key);
  return joined(way);
}

/// Returns the dotted path of each key.
std::vector<std::string> paths_to(std::vector<SavedKey> const& keys, std::vector<std::string> const& way) {
  std::vector<std::string> ways;
  for (auto const& one : keys) ways.push_back(dotted(way, one.key));
  return ways;
}

/// Returns the first part of a tensor's name that says that it is of an optimizer, as in a dict that was flattened:
/// "optimizer.state.lm_head.weight.exp_avg". Empty for other tensors. No module of a model has such a name.
std::string_view optimizer_part(std::string_view name) {
  auto const first = name.substr(0, name.find('.'));
  bool const is_optimizer = first == "optim" || first == "optimizer" || first == "optimizers";
  return is_optimizer && first.size() < name.size() ? first : std::string_view();
}

/// The keys of one dict, sorted by kind.
struct Sorted {
  explicit Sorted(std::vector<SavedKey> const& keys) {
    for (auto const& one : keys) {
      auto const kind = kind_of_key(one.key);
      bool const holder = one.under != KeyContent::tensor && one.under != KeyContent::counter;
      loose = loose || !holder;
      counted = counted || (one.under == KeyContent::counter && kind != KeyKind::training);
      unsure = unsure || one.under == KeyContent::names;
      has_model = has_model || (kind == KeyKind::model && one.under == KeyContent::dict);
      if (kind == KeyKind::training && holder) training.push_back(one.key);
      if (auto const part = optimizer_part(one.key); !holder && !part.empty()) flat_training.emplace(part);
      if (one.under == KeyContent::counter) continue;
      if (kind == KeyKind::model) known.push_back(one.key);
      if (kind == KeyKind::other) other.push_back(one.key);
    }
  }
  /// Returns whether there is no sign of training state. Then a key such as "model" may be the name of a module.
  [[nodiscard]] bool all_one() const noexcept { return !has_model && training.empty(); }
  /// Returns whether this dict is the model itself. The weights of a model are never nested dicts.
  [[nodiscard]] bool is_model() const noexcept { return all_one() || (!has_model && loose && !unsure); }
  [[nodiscard]] bool clear() const noexcept { return known.size() == 1 && other.empty(); }

  std::vector<std::string> known{};
  std::vector<std::string> other{};
  std::vector<std::string> training{};    ///< training state that holds more than one tensor
  std::set<std::string> flat_training{};  ///< first parts of the names of tensors that are training state
  bool loose = false;                     ///< the dict itself holds tensors
  bool counted = false;                   ///< there are one-value tensors that are not training state
  bool unsure = false;
  bool has_model = false;  ///< there is a dict under a known key of models
};

[[noreturn]] void refuse(std::vector<SavedKey> const& keys, Sorted const& sorted, std::vector<std::string> const& way,
                         std::string const& resource) {
  bool const none = sorted.known.empty() && sorted.other.empty();
  std::vector<SavedKey> counted = keys;
  std::erase_if(counted, [](auto const& one) { return one.under == KeyContent::counter; });
  auto const likely = !sorted.known.empty() ? sorted.known.front() : none ? keys.front().key : sorted.other.front();
  throw FormatError(
      {.operation = open_operation,
       .message = none ? "the file holds training state but no model" : "several parts of the file might be the model",
       .got = "tensors under " + list_text(paths_to(counted, way)),
       .resource = resource,
       .hint = "choose the model: `model_key` " + dotted(way, likely) +
               " takes the tensors under that key, `model_key` . takes all tensors and keeps the keys in their names",
       .section = to_string(ErrorSection::keys)});
}

/// Descends to `key` and records its siblings as left out.
void enter(KeyPath& way, std::vector<SavedKey> const& keys, std::string const& key) {
  for (auto const& one : keys) {
    if (one.key != key) way.left_out.push_back(dotted(way.keys, one.key));
  }
  way.keys.push_back(key);
}

/// Follows the path that the user gave. Keys may contain dots.
void follow(ListKeys const& list, std::string const& asked, KeyPath& way, std::string const& resource) {
  for (std::string_view rest = asked; !rest.empty();) {
    auto const keys = list(way.keys);
    std::string const* best = nullptr;
    for (auto const& [key, under] : keys) {
      bool const fits = rest == key || (rest.starts_with(key) && rest.substr(key.size()).starts_with('.'));
      if (fits && (best == nullptr || key.size() > best->size())) best = &key;
    }
    if (best == nullptr) {
      throw UsageError({.operation = open_operation,
                        .message = "there are no tensors under the key \"" + asked + "\"",
                        .got = keys.empty() ? "" : "tensors under " + list_text(paths_to(keys, way.keys)),
                        .resource = resource,
                        .hint = "set `model_key` to one of these, or to . for everything"});
    }
    rest.remove_prefix(std::min(rest.size(), best->size() + 1));
    enter(way, keys, *best);
  }
}

/// Returns whether an unknown key, or one or more below it, wraps a model and its training state.
bool wraps(ListKeys const& list, std::vector<std::string> way, SavedKey key) {
  for (int depth = 0; depth < max_wrappers && key.under == KeyContent::dict; ++depth) {
    way.push_back(key.key);
    auto keys = list(way);
    if (!Sorted(keys).all_one()) return true;
    std::erase_if(keys, [](auto const& one) {
      return one.under == KeyContent::counter || kind_of_key(one.key) == KeyKind::training;
    });
    if (keys.size() != 1) return false;
    key = keys.front();
  }
  return false;
}

/// Returns the first key of a dict that wraps a model and its training state; null when there is none.
SavedKey const* find_wrapper(ListKeys const& list, std::vector<std::string> const& way,
                             std::vector<SavedKey> const& keys) {
  auto const found = std::find_if(keys.begin(), keys.end(), [&](auto const& one) {
    return kind_of_key(one.key) == KeyKind::other && wraps(list, way, one);
  });
  return found == keys.end() ? nullptr : &*found;
}

}  // namespace

KeyKind kind_of_key(std::string_view key) noexcept {
  if (std::find(models.begin(), models.end(), key) != models.end()) return KeyKind::model;
  bool const training =
      std::find(training_keys.begin(), training_keys.end(), key) != training_keys.end() ||
      std::any_of(training_words.begin(), training_words.end(), [&](auto word) { return has_word(key, word); });
  return training ? KeyKind::training : KeyKind::other;
}

std::string joined(std::vector<std::string> const& way) {
  std::string text;
  for (auto const& key : way) text += (&key == &way.front() ? "" : ".") + key;
  return text;
}

std::optional<std::string> KeyPath::own_name(std::string_view name) const {
  auto const stands_under = [&](std::string const& key) {
    return name.starts_with(key) && (name.size() == key.size() || name[key.size()] == '.');
  };
  auto const way = joined(keys);
  if (!way.empty() && !stands_under(way)) return std::nullopt;
  for (auto const& other : left_out) {
    if (other.size() > way.size() && stands_under(other)) return std::nullopt;
  }
  if (way.empty()) return std::string(name);
  // If the user's path names one tensor, the tensor keeps its name.
  return std::string(name.size() == way.size() ? name : name.substr(way.size() + 1));
}

KeyPath find_model(ListKeys const& list, std::string const& asked, std::string const& resource) {
  KeyPath way;
  if (asked == ".") return way;
  follow(list, asked, way, resource);
  // A known key or the user's path leads to the model, unless a known key clearly continues further inside.
  bool named = !asked.empty();
  for (int depth = 0; depth < max_wrappers; ++depth) {
    auto const keys = list(way.keys);
    Sorted const sorted(keys);
    auto const* const wrapper = !named && sorted.all_one() ? find_wrapper(list, way.keys, keys) : nullptr;
    if (wrapper != nullptr) {
      if (sorted.known.size() + sorted.other.size() > 1) refuse(keys, sorted, way.keys, resource);
      enter(way, keys, wrapper->key);
      continue;
    }
    if (!named && sorted.is_model()) {
      for (auto const& key : sorted.training) way.left_out.push_back(dotted(way.keys, key));
      for (auto const& part : sorted.flat_training) way.left_out.push_back(dotted(way.keys, part));
      break;
    }
    if (named && (sorted.all_one() || !sorted.clear() || sorted.counted)) break;
    if (!sorted.clear()) refuse(keys, sorted, way.keys, resource);
    enter(way, keys, sorted.known.front());
    named = true;
  }
  return way;
}

std::optional<KeyPath> wrapping_key(std::vector<std::string> const& names) {
  KeyPath found;
  bool twice = false;
  for (auto const& name : names) {
    std::string const first = name.substr(0, name.find('.'));
    auto const kind = kind_of_key(first);
    if (kind == KeyKind::training) {
      if (std::find(found.left_out.begin(), found.left_out.end(), first) == found.left_out.end())
        found.left_out.push_back(first);
      continue;
    }
    if (kind != KeyKind::model || first == name || (!found.keys.empty() && found.keys.front() != first))
      return std::nullopt;
    found.keys = {first};
    twice = twice || std::string_view(name).substr(first.size()).starts_with(".model.");
  }
  return twice ? std::optional(found) : std::nullopt;
}

}  // namespace crossrank::checkpoint
