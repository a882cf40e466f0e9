#pragma once
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

/// The key under which the model stands, and the keys that are left out.
struct ModelKey {
  std::string key{};
  std::vector<std::string> left_out{};
};

/// Chooses among the keys that hold tensors; `asked` is the user's word ("." takes everything, empty leaves it to the
/// known names). Nothing when all of it is the model. `FormatError` where several might be, `UsageError` for an asked
/// one that is not there.
[[nodiscard]] std::optional<ModelKey> choose_model(std::vector<std::string> const& keys, std::string const& asked,
                                                   std::string const& resource);

/// The key under which a script saved the model where nothing else tells: all names begin with it, but for states of
/// the training, and one goes on with "model.", as in "model.model.layers.0". Nothing where "model" may be a module.
[[nodiscard]] std::optional<ModelKey> wrapping_key(std::vector<std::string> const& names);

}  // namespace crossrank::checkpoint
