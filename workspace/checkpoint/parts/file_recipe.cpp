#include "workspace/checkpoint/parts/file_recipe.hpp"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <utility>

#include "lib/codec/json/json_text.hpp"
#include "workspace/checkpoint/source/torch/dcp_source.hpp"

namespace crossrank::checkpoint {
namespace {

/// Appends a JSON list; `each` appends one value.
template <class Values, class Each>
void append_list(std::string& out, Values const& values, Each const& each) {
  out += '[';
  bool first = true;
  for (auto const& value : values) {
    if (!std::exchange(first, false)) out += ',';
    each(value);
  }
  out += ']';
}

template <class Values>
void append_numbers(std::string& out, Values const& values) {
  append_list(out, values, [&](auto const& value) { out += std::to_string(value); });
}

void append_description(std::string& out, std::string const& name, Dtype dtype, Shape const& shape) {
  codec::append_json_string(out, name);
  out += ",\"";
  out += name_of(dtype);
  out += "\",";
  append_numbers(out, shape);
}

/// The recipe of one file while it is written. Tensors of inputs get numbers in the order of their first use.
class RecipeText {
 public:
  RecipeText(MergeLayout const& layout, std::unordered_map<std::string_view, std::size_t> const& numbers)
      : layout_(layout), numbers_(numbers), pieces_(layout.set.opened_from == OpenedFrom::pieces) {}

  /// Returns false if a recipe cannot express the tensor.
  bool add(MergedTensor const& tensor) {
    // A recipe combines all inputs to one piece.
    if (!comes_from_inputs_alone(tensor) || (tensor.combined > 0 && tensor.combined != tensor.inputs.size()))
      return false;
    if (!tensors_.empty()) tensors_ += ',';
    tensors_ += '[';
    append_description(tensors_, tensor.name, tensor.dtype, tensor.shape);
    tensors_ += ',';
    bool const computed = tensor.rule->combines_values();
    append_list(tensors_, computed ? std::vector<InputRuns>() : tensor.pieces,
                [&](InputRuns const& piece) { append_runs(piece); });
    tensors_ += ',';
    append_list(tensors_, tensor.replica_runs, [&](ReplicaRuns const& replica) { append_replica(replica); });
    if (computed) append_combination(tensor);
    tensors_ += ']';
    return known_;
  }

  [[nodiscard]] std::string finish() {
    auto const& files = layout_.set.files;
    for (std::size_t i = 0; pieces_ && !inputs_.empty() && i < files.size(); ++i) {
      if (std::filesystem::path(files[i].path).filename() == dcp_metadata_name) inputs_.front().files.push_back(i);
    }
    for (auto& input : inputs_) {
      std::sort(input.files.begin(), input.files.end());
      input.files.erase(std::unique(input.files.begin(), input.files.end()), input.files.end());
    }
    std::string out = R"({"inputs":)";
    append_list(out, inputs_, [&](RecipeInput const& input) {
      out += R"({"files":)";
      append_numbers(out, input.files);
      out += input.pieces ? R"(,"pieces":true,"tensors":)" : R"(,"pieces":false,"tensors":)";
      append_list(out, input.tensors, [&](SourceTensor const& tensor) {
        out += '[';
        append_description(out, tensor.name, tensor.dtype, tensor.shape);
        out += ']';
      });
      out += '}';
    });
    out += R"(,"tensors":[)" + tensors_ + "]}";
    return out;
  }

 private:
  using Numbers = std::initializer_list<std::uint64_t>;

  void append_runs(InputRuns const& piece) {
    auto const at = number_of(piece.input);
    auto const& from = piece.copy.from;
    append_numbers(tensors_, Numbers{at.source, at.tensor, from.count, from.run_bytes, from.first_byte,
                                     from.stride_bytes, piece.copy.to_first, piece.copy.to_stride});
    // The increment may be negative.
    if (piece.add == 0) return;
    tensors_.back() = ',';
    tensors_ += std::to_string(piece.add) + "]";
  }

  void append_replica(ReplicaRuns const& replica) {
    auto const kept = number_of(replica.kept);
    auto const other = number_of(replica.other);
    auto const& runs = replica.runs;
    append_numbers(tensors_, Numbers{kept.source, kept.tensor, other.source, other.tensor, runs.count, runs.run_bytes,
                                     runs.first_byte, runs.stride_bytes, replica.must_differ ? 1U : 0U});
  }

  /// Appends [op, inputs], or for the sum of an element [element, parts, part_replicas, replicas, inputs].
  void append_combination(MergedTensor const& tensor) {
    tensors_ += ",[";
    if (auto const* const sum = std::get_if<SumElement>(&tensor.rule->kind)) {
      tensors_ += std::to_string(sum->element) + ",";
      append_numbers(tensors_, sum->parts);
      tensors_ += ',';
      append_numbers(tensors_, sum->part_replicas);
      tensors_ += "," + std::to_string(sum->replicas) + ",";
    } else {
      tensors_ += std::to_string(static_cast<int>(std::get<Reduce>(tensor.rule->kind).op)) + ",";
    }
    append_list(tensors_, tensor.inputs, [&](TensorAt const& input) {
      auto const at = number_of(input);
      append_numbers(tensors_, Numbers{at.source, at.tensor});
    });
    tensors_ += ']';
  }

  TensorAt number_of(TensorAt const& at) {
    auto const [known, fresh] = places_.try_emplace(std::pair(at.source, at.tensor));
    if (!fresh) return known->second;
    auto const& source = *layout_.set.sources[at.source];
    std::vector<std::size_t> files;
    for (auto const& path : source.files_of(at.tensor)) {
      auto const found = numbers_.find(path);
      known_ = known_ && found != numbers_.end();
      if (known_) files.push_back(found->second);
    }
    known_ = known_ && !files.empty() && (pieces_ || files.size() == 1);
    if (!known_) return {};
    auto const input = input_of(files.front());
    auto& tensors = inputs_[input].tensors;
    if (pieces_) inputs_[input].files.insert(inputs_[input].files.end(), files.begin(), files.end());
    known->second = {input, static_cast<std::uint32_t>(tensors.size())};
    tensors.push_back(source.tensors()[at.tensor]);
    return known->second;
  }

  /// Returns the number of the input for a file. All files of a distributed checkpoint are one.
  std::uint32_t input_of(std::size_t file) {
    auto const [known, fresh] =
        input_numbers_.try_emplace(pieces_ ? std::size_t{0} : file, static_cast<std::uint32_t>(inputs_.size()));
    if (fresh) inputs_.push_back({.files = {file}, .pieces = pieces_});
    return known->second;
  }

  MergeLayout const& layout_;
  std::unordered_map<std::string_view, std::size_t> const& numbers_;
  bool pieces_;
  bool known_ = true;  ///< whether all files so far have stamps
  std::map<std::pair<std::uint32_t, std::uint32_t>, TensorAt> places_{};
  std::map<std::size_t, std::uint32_t> input_numbers_{};
  std::vector<RecipeInput> inputs_{};
  std::string tensors_{};
};

}  // namespace

RecipeWriter::RecipeWriter(MergeLayout const& layout) : layout_(layout) {
  auto const& files = layout.set.files;
  for (std::size_t i = 0; i < files.size(); ++i) numbers_.emplace(files[i].path, i);
}

std::optional<std::string> RecipeWriter::text_for(OutputFile const& file) const {
  if (layout_.set.opened_from == OpenedFrom::together) return std::nullopt;
  auto tensors = file.tensors;
  std::sort(tensors.begin(), tensors.end(), [](auto const& a, auto const& b) { return a.tensor < b.tensor; });
  RecipeText text(layout_, numbers_);
  for (auto const& tensor : tensors) {
    if (!text.add(layout_.tensors[tensor.tensor])) return std::nullopt;
  }
  return text.finish();
}

}  // namespace crossrank::checkpoint
