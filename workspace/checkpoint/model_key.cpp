#include "workspace/checkpoint/model_key.hpp"

#include <algorithm>
#include <array>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {
namespace {

constexpr char const* operation = "checkpoint open";
constexpr std::size_t most_listed = 8;

constexpr std::array<std::string_view, 6> models{
    "state_dict", "model_state_dict", "model_state", "model_weights", "model", "module"};
// Words of which a key speaks of the training, whatever stands around them: "optimizer_states", "cuda_rng_state".
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

std::string list(std::vector<std::string> const& keys) {
  std::string text;
  for (std::size_t i = 0; i < keys.size() && i < most_listed; ++i) text += (i == 0 ? "" : ", ") + keys[i];
  return keys.size() > most_listed ? text + " and " + std::to_string(keys.size() - most_listed) + " more" : text;
}

[[noreturn]] void refuse(std::string message, std::vector<std::string> const& keys, std::string const& likely,
                         std::string const& resource) {
  throw FormatError({.operation = operation,
                     .message = std::move(message),
                     .got = "tensors under " + list(keys),
                     .resource = resource,
                     .remedy = "say which holds the model: --model-key " + likely +
                               " takes what stands there, --model-key . everything under names that begin with the key",
                     .section = keys_section});
}

std::vector<std::string> without(std::vector<std::string> keys, std::string const& one) {
  std::erase(keys, one);
  return keys;
}

}  // namespace

KeyKind kind_of_key(std::string_view key) noexcept {
  if (std::find(models.begin(), models.end(), key) != models.end()) return KeyKind::model;
  bool const training =
      std::find(training_keys.begin(), training_keys.end(), key) != training_keys.end() ||
      std::any_of(training_words.begin(), training_words.end(), [&](auto word) { return has_word(key, word); });
  return training ? KeyKind::training : KeyKind::other;
}

std::optional<ModelKey> choose_model(std::vector<std::string> const& keys, std::string const& asked,
                                     std::string const& resource) {
  if (asked == ".") return std::nullopt;
  if (!asked.empty()) {
    if (std::find(keys.begin(), keys.end(), asked) != keys.end()) return ModelKey{asked, without(keys, asked)};
    throw UsageError({.operation = operation,
                      .message = "there are no tensors under the key \"" + asked + "\"",
                      .got = "tensors under " + list(keys),
                      .resource = resource,
                      .remedy = "give one of these by --model-key, or . for everything"});
  }
  std::vector<std::string> known;
  std::vector<std::string> other;
  for (auto const& key : keys) {
    if (kind_of_key(key) == KeyKind::model) known.push_back(key);
    if (kind_of_key(key) == KeyKind::other) other.push_back(key);
  }
  if (known.empty() && other.size() == keys.size()) return std::nullopt;
  if (known.size() == 1 && other.empty()) return ModelKey{known.front(), without(keys, known.front())};
  if (known.empty() && other.empty())
    refuse("this holds states of a training and no model", keys, keys.front(), resource);
  refuse("several parts of this might be the model", keys, known.empty() ? other.front() : known.front(), resource);
}

std::optional<ModelKey> wrapping_key(std::vector<std::string> const& names) {
  ModelKey found;
  bool twice = false;
  for (auto const& name : names) {
    std::string const first = name.substr(0, name.find('.'));
    auto const kind = kind_of_key(first);
    if (kind == KeyKind::training) {
      if (std::find(found.left_out.begin(), found.left_out.end(), first) == found.left_out.end())
        found.left_out.push_back(first);
      continue;
    }
    if (kind != KeyKind::model || first == name || (!found.key.empty() && found.key != first)) return std::nullopt;
    found.key = first;
    twice = twice || std::string_view(name).substr(first.size()).starts_with(".model.");
  }
  return twice ? std::optional(found) : std::nullopt;
}

}  // namespace crossrank::checkpoint
