#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace crossrank::checkpoint {

/// The kind of data that training scripts save under a key.
enum class KeyKind {
  model,     ///< "state_dict", "model", "module"
  training,  ///< optimizers, schedulers, random states, averaged weights: not part of the model
  other,
};

/// Returns the kind of data that scripts save under this key.
[[nodiscard]] KeyKind kind_of_key(std::string_view key) noexcept;

/// The content under a key.
enum class KeyContent {
  tensor,
  counter,  ///< a one-value tensor, such as scripts save beside the model
  dict,
  other,  ///< for example a list
  names,  ///< several names begin with the key; it is unknown whether there was a dict
};

/// A saved key that has tensors under it.
struct SavedKey {
  std::string key{};
  KeyContent under = KeyContent::dict;
};

/// Lists the keys with tensors in the dict at path `way`. Returns nothing if there is no dict.
using ListKeys = std::function<std::vector<SavedKey>(std::vector<std::string> const& way)>;

/// The path to the model in a saved object, and the paths of parts beside it that are not the model.
struct KeyPath {
  std::vector<std::string> keys{};      ///< from the outside in; empty when the outermost dict is the model
  std::vector<std::string> left_out{};  ///< dotted paths of the other parts

  /// Returns the name inside the model of the tensor with dotted path `name`, or nothing if it is not in the model.
  [[nodiscard]] std::optional<std::string> own_name(std::string_view name) const;
};

/// Returns the keys joined by dots.
[[nodiscard]] std::string joined(std::vector<std::string> const& way);

/// Finds the model by the keys that scripts use.
///
/// `asked` is the user's choice: a dotted path, "." for everything, or empty to use the known keys. Throws
/// `FormatError` if several parts might be the model, and `UsageError` if there is nothing at `asked`.
[[nodiscard]] KeyPath find_model(ListKeys const& list, std::string const& asked, std::string const& resource);

/// Returns the key under which a script saved the model, from tensor names alone.
///
/// All names except those of training state must begin with the key, and one must continue with "model.", as in
/// "model.model.layers.0". Returns nothing if "model" may be the name of a module.
[[nodiscard]] std::optional<KeyPath> wrapping_key(std::vector<std::string> const& names);

}  // namespace crossrank::checkpoint
