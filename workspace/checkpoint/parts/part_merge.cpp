#include "workspace/checkpoint/parts/part_merge.hpp"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/io/parallel_for.hpp"
#include "workspace/checkpoint/discovery/open_shard_set.hpp"
#include "workspace/checkpoint/discovery/shard_opener.hpp"
#include "workspace/checkpoint/parts/file_recipe.hpp"
#include "workspace/checkpoint/plan/merge_plan_state.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Returns the recipes of files in their order, or nothing if one of them has none.
std::optional<std::vector<FileRecipe>> read_recipes(PlanFile const& plan, std::span<PlannedFile const> files,
                                                    platform::Directory const& folder) {
  if (std::any_of(files.begin(), files.end(), [](auto const& file) { return file.recipe.bytes == 0; }))
    return std::nullopt;
  auto const path = folder.path() / recipes_name;
  auto const opened = std::make_shared<FilePool>()->open(path);
  std::vector<FileRecipe> recipes;
  for (auto const& file : files) {
    auto const& at = file.recipe;
    std::string text;
    bool const complete = at.begin <= opened->size() && at.bytes <= opened->size() - at.begin;
    if (complete) {
      text.resize(at.bytes);
      opened->read_at(at.begin, std::as_writable_bytes(std::span(text)));
    }
    auto const found = codec::checksum(std::as_bytes(std::span(text)));
    if (!complete || found != at.checksum) {
      throw FormatError({.operation = parts_operation,
                         .message = "the recipe of " + file.name + " is not the one of this plan",
                         .expected = codec::to_hex(at.checksum),
                         .got = complete ? codec::to_hex(found) : std::to_string(opened->size()) + " bytes",
                         .resource = path.string(),
                         .hint = "use the newest plan file, or make the plan again",
                         .section = "recipes"});
    }
    recipes.push_back(read_recipe(text, plan.stamps.size(), path.string()));
  }
  return recipes;
}

/// An input of several recipes. A tensor that several of them take is here once.
struct NeededInput {
  std::set<std::size_t> files{};
  bool pieces = false;
  std::map<std::string, SourceTensor, std::less<>> tensors{};
  std::unordered_map<std::string_view, std::size_t> numbers{};  ///< of the opened source's tensors
};

/// Opens the inputs of recipes and joins the recipes to one layout.
class RecipeMerge {
 public:
  RecipeMerge(PartsPlan::State const& plan, std::vector<FileRecipe> recipes)
      : plan_(plan), recipes_(std::move(recipes)) {
    for (auto const& recipe : recipes_) {
      auto& numbers = inputs_of_.emplace_back();
      for (auto const& input : recipe.inputs) numbers.push_back(add(input));
    }
  }

  PartMerge open(std::span<PlannedFile const> files) {
    open_sources();
    PartMerge merge{.inputs = pool_->stamps()};
    std::vector<std::size_t> counts;
    for (std::size_t i = 0; i < recipes_.size(); ++i) {
      counts.push_back(recipes_[i].tensors.size());
      for (auto& tensor : recipes_[i].tensors) layout_->tensors.push_back(placed(std::move(tensor), i));
    }
    for (auto const& tensor : layout_->tensors) layout_->bytes += tensor.bytes;
    layout_->set.files = merge.inputs;
    bool const pieces = std::any_of(needed_.begin(), needed_.end(), [](auto const& input) { return input.pieces; });
    layout_->set.opened_from = pieces ? OpenedFrom::pieces : OpenedFrom::files;
    merge.layout = layout_;
    auto const source = std::make_shared<MergedSource>(layout_);
    std::size_t first = 0;
    for (std::size_t i = 0; i < files.size(); ++i) {
      merge.files.push_back(lay_out_file_of(source, files[i].name, first, counts[i], plan_.file.options.format));
      first += counts[i];
      require_size(files[i], merge.files.back());
    }
    return merge;
  }

 private:
  /// Returns the number of an input. All files of a distributed checkpoint are one.
  std::size_t add(RecipeInput const& input) {
    auto const key = input.pieces ? plan_.file.stamps.size() : input.files.front();
    auto const [known, fresh] = numbers_.try_emplace(key, needed_.size());
    if (fresh) needed_.push_back({.pieces = input.pieces});
    auto& needed = needed_[known->second];
    needed.files.insert(input.files.begin(), input.files.end());
    for (auto const& tensor : input.tensors) needed.tensors.try_emplace(tensor.name, tensor);
    return known->second;
  }

  void open_sources() {
    auto& sources = layout_->set.sources;
    sources.resize(needed_.size());
    try {
      codec::parallel_open(needed_.size(), [&](std::size_t i) { sources[i] = open_source(needed_[i]); });
    } catch (FormatError const&) {
      require_unchanged_inputs();
      throw;
    }
    require_unchanged_inputs();
    for (std::size_t i = 0; i < needed_.size(); ++i) require_tensors(needed_[i], *sources[i]);
  }

  [[nodiscard]] std::shared_ptr<ShardSource const> open_source(NeededInput const& input) const {
    auto const& options = plan_.file.inputs.options;
    if (!input.pieces) {
      return open_shard_file(plan_.file.stamps[*input.files.begin()].path, {.crc = crc_policy(options.crc),
                                                                            .extra_globals = options.extra_globals,
                                                                            .model_key = options.model_key,
                                                                            .pool = pool_});
    }
    std::vector<fs::path> files;
    for (auto const file : input.files) files.emplace_back(plan_.file.stamps[file].path);
    return open_dcp_files(files, {.crc = crc_policy(options.crc),
                                  .model_key = options.model_key,
                                  .pool = pool_,
                                  .wants = [&input](std::string const& name) { return input.tensors.contains(name); }});
  }

  /// Compares the stamps of the files that were opened with those of the plan.
  void require_unchanged_inputs() const {
    std::map<std::string_view, FileStamp const*> planned;
    for (auto const& input : needed_) {
      for (auto const file : input.files) planned.emplace(plan_.file.stamps[file].path, &plan_.file.stamps[file]);
    }
    std::vector<FileStamp> recorded;
    std::vector<FileStamp> found;
    for (auto& stamp : pool_->stamps()) {
      auto const known = planned.find(stamp.path);
      recorded.push_back(known == planned.end() ? FileStamp{.path = stamp.path} : *known->second);
      found.push_back(std::move(stamp));
    }
    require_recorded(recorded, found, plan_.saved_as);
  }

  void require_tensors(NeededInput& input, ShardSource const& source) const {
    auto const tensors = source.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (input.tensors.contains(tensors[i].name)) input.numbers.emplace(tensors[i].name, i);
    }
    for (auto const& [name, wanted] : input.tensors) {
      auto const found = input.numbers.find(name);
      auto const* const tensor = found == input.numbers.end() ? nullptr : &tensors[found->second];
      if (tensor != nullptr && tensor->dtype == wanted.dtype && tensor->shape == wanted.shape) continue;
      throw FormatError({.operation = parts_operation,
                         .message = "the header of an input has changed since the plan was made: " + source.name(),
                         .expected = name + ": " + text_of(wanted),
                         .got = tensor == nullptr ? "no such tensor" : text_of(*tensor),
                         .resource = plan_.saved_as.string(),
                         .hint = "make a new plan",
                         .details = {source.name()},
                         .section = "merge_hash"});
    }
  }

  static std::string text_of(SourceTensor const& tensor) {
    return std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape);
  }

  /// Returns a tensor of a recipe with its inputs replaced by those of the layout.
  [[nodiscard]] MergedTensor placed(MergedTensor tensor, std::size_t recipe) const {
    auto const place = [&](TensorAt& at) {
      auto const number = inputs_of_[recipe][at.source];
      auto const& name = recipes_[recipe].inputs[at.source].tensors[at.tensor].name;
      at = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(needed_[number].numbers.at(name))};
    };
    for (auto& piece : tensor.pieces) place(piece.input);
    for (auto& input : tensor.inputs) place(input);
    for (auto& replica : tensor.replica_runs) {
      place(replica.kept);
      place(replica.other);
    }
    return tensor;
  }

  void require_size(PlannedFile const& planned, OutputFile const& made) const {
    if (planned.bytes == made.bytes) return;
    throw FormatError({.operation = parts_operation,
                       .message = "the recipe of " + planned.name + " gives a file of another size",
                       .expected = std::to_string(planned.bytes) + " bytes",
                       .got = std::to_string(made.bytes) + " bytes",
                       .resource = plan_.saved_as.string(),
                       .hint = "make the plan again, or use the version of crossrank that made it",
                       .section = "recipes"});
  }

  PartsPlan::State const& plan_;
  std::vector<FileRecipe> recipes_;
  std::shared_ptr<FilePool> pool_ = std::make_shared<FilePool>();
  std::vector<NeededInput> needed_{};
  std::map<std::size_t, std::size_t> numbers_{};       ///< of needed inputs, by file
  std::vector<std::vector<std::size_t>> inputs_of_{};  ///< for each recipe the numbers of its inputs
  std::shared_ptr<MergeLayout> layout_ = std::make_shared<MergeLayout>();
};

}  // namespace

std::optional<PartMerge> open_part(PartsPlan::State const& plan, std::span<PlannedFile const> files,
                                   platform::Directory const& folder) {
  auto recipes = read_recipes(plan.file, files, folder);
  if (!recipes) return std::nullopt;
  return RecipeMerge(plan, *std::move(recipes)).open(files);
}

PartMerge take_part(WholeMerge const& whole, std::span<PlannedFile const> files) {
  PartMerge merge{.layout = whole.merge.state().layout, .inputs = whole.request.inputs};
  std::set<std::string_view> names;
  for (auto const& file : files) names.insert(file.name);
  for (auto const& file : whole.request.files) {
    if (names.contains(file.name)) merge.files.push_back(file);
  }
  return merge;
}

}  // namespace crossrank::checkpoint
