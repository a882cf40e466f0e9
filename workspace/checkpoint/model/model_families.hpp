#pragma once
#include <span>
#include <string_view>

namespace crossrank::checkpoint {

/// The layer names of a family of models.
///
/// `layer` lists the parts of names after a layer's number. Groups are separated by `;` and the alternatives of a group
/// by `|`. An alternative is a list of names, and a layer has all names of one alternative. A group that begins with
/// `?` is optional. Braces stand for several texts, `*` for a number.
struct ModelFamily {
  std::string_view types{};   ///< values of `model_type`, separated by spaces
  std::string_view before{};  ///< part of the name before a layer's number
  std::string_view top{};     ///< names outside the layers
  std::string_view layer{};
  std::string_view head{};          ///< name of the output head
  bool tied_by_default = false;     ///< the head is the embedding unless the config says otherwise
  std::string_view biased{};        ///< names in `layer` that have a bias in all models, unless the config refuses it
  std::string_view refuses_bias{};  ///< keys of the config; one that is false refuses the biases
};

/// Returns all known families.
[[nodiscard]] std::span<ModelFamily const> model_families() noexcept;

}  // namespace crossrank::checkpoint
