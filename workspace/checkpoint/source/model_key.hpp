#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// What training scripts save under a key.
enum class KeyKind {
  model,     ///< "state_dict", "model", "module"
  training,  ///< optimizers, schedulers, random states, averaged weights: no part of the model itself
  other,
};

[[nodiscard]] KeyKind kind_of_key(std::string_view key) noexcept;

/// Section of errors that say that it is not clear which part is the model.
inline constexpr char const* keys_section = "keys";

/// What stands under a key.
enum class KeyContent {
  tensor,
  counter,  ///< a tensor of one value, as scripts keep beside the model
  dict,
  other,  ///< a list or the like
  names,  ///< several names begin with it; nobody knows whether there was a dict
};

/// A key of what was saved, with tensors under it.
struct SavedKey {
  std::string key{};
  KeyContent under = KeyContent::dict;
};

/// Lists what holds tensors in the dict to which `way` leads from the outermost one; nothing where there is no dict.
using ListKeys = std::function<std::vector<SavedKey>(std::vector<std::string> const& way)>;

/// Where the model is in what was saved, and what beside it is no part of it.
struct KeyPath {
  std::vector<std::string> keys{};      ///< one after the other; none when the outermost dict is the model
  std::vector<std::string> left_out{};  ///< ways to the other parts, their keys joined by dots

  /// A tensor's name inside the model, for the way to it joined by dots; nothing where it is not of the model.
  [[nodiscard]] std::optional<std::string> own_name(std::string_view name) const;
};

/// Keys joined by dots.
[[nodiscard]] std::string joined(std::vector<std::string> const& way);

/// Finds the model by the keys that scripts use; `asked` is the user's word: a way with dots, "." for everything, empty
/// to leave it to the known keys. `FormatError` where several parts might be the model, `UsageError` for an asked one
/// that is not there.
[[nodiscard]] KeyPath find_model(ListKeys const& list, std::string const& asked, std::string const& resource);

/// The key under which a script saved the model where nothing else tells: all names begin with it, but for states of
/// the training, and one goes on with "model.", as in "model.model.layers.0". Nothing where "model" may be a module.
[[nodiscard]] std::optional<KeyPath> wrapping_key(std::vector<std::string> const& names);

}  // namespace crossrank::checkpoint
