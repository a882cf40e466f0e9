#pragma once
#include <span>
#include <string_view>

namespace crossrank::checkpoint {

/// How the layers of a family of models are called.
///
/// `layer` lists what stands behind a layer's number: groups end with `;`, each group is one or more alternatives with
/// `|` between them, an alternative is a list of names of which a layer has all. A group that begins with `?` may be
/// absent. Braces stand for several texts, `*` for a number.
struct ModelFamily {
  std::string_view types{};   ///< values of `model_type`, with spaces between them
  std::string_view before{};  ///< what stands before a layer's number
  std::string_view top{};     ///< names outside of the layers
  std::string_view layer{};
  std::string_view head{};       ///< name of the output head
  bool tied_by_default = false;  ///< the head is the embedding where the config says nothing
};

/// Families whose names are known.
[[nodiscard]] std::span<ModelFamily const> model_families() noexcept;

}  // namespace crossrank::checkpoint
