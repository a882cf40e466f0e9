#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "workspace/checkpoint/plan/merge_layout.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// The file in a plan's folder that holds the recipes of all output files, one after the other.
inline constexpr char const* recipes_name = ".recipes";

/// Input files, and the tensors that a recipe takes from them.
struct RecipeInput {
  std::vector<std::size_t> files{};  ///< numbers of stamps in the plan
  bool pieces = false;               ///< the files hold pieces of the tensors, as in a distributed checkpoint
  std::vector<SourceTensor> tensors{};
};

/// What a part needs to know to write one output file, so that it opens no other inputs and applies no rules.
struct FileRecipe {
  std::vector<RecipeInput> inputs{};
  std::vector<MergedTensor> tensors{};  ///< in natural order; a `TensorAt` names a tensor of `inputs`
};

/// Writes the recipes of the output files of a merge.
class RecipeWriter {
 public:
  /// `layout` must outlive the writer. The stamps of the plan begin with those of the layout's inputs.
  explicit RecipeWriter(MergeLayout const& layout);

  /// Returns the recipe of a file as JSON. Returns nothing if the file needs more than runs of bytes: requantized or
  /// computed values, or a source that needs all of its files.
  [[nodiscard]] std::optional<std::string> text_for(OutputFile const& file) const;

 private:
  MergeLayout const& layout_;
  std::unordered_map<std::string_view, std::size_t> numbers_{};  ///< of the inputs' stamps, by path
};

/// Parses a recipe. `stamps` is the number of stamps in the plan. Throws `FormatError` with section "recipes" and
/// `resource` for text that `RecipeWriter` does not write, such as runs that leave their tensor or do not fill it.
[[nodiscard]] FileRecipe read_recipe(std::string_view text, std::size_t stamps, std::string const& resource);

}  // namespace crossrank::checkpoint
