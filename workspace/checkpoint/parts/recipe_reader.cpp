#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/json/json_document.hpp"
#include "workspace/checkpoint/parts/file_recipe.hpp"
#include "workspace/checkpoint/parts/plan_file.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* recipe_section = "recipes";
constexpr char const* recipe_hint = "make the plan again";
// Sums of parts do not overflow.
constexpr std::uint64_t max_part = std::uint64_t{1} << 40;
// Runs that do not join to longer ones are followed one by one. Merges have few of them.
constexpr std::uint64_t max_single_runs = std::uint64_t{1} << 26;
constexpr std::uint64_t max_elements = std::numeric_limits<int>::max();
constexpr std::uint64_t longest = std::numeric_limits<std::int64_t>::max();

/// Joins runs that together have no gaps, such as the columns of all ranks. Sorts the others by their first byte.
std::vector<StridedRuns> joined(std::vector<StridedRuns> runs) {
  auto const key = [](StridedRuns const& one) { return std::tuple(one.stride_bytes, one.count, one.first_byte); };
  std::sort(runs.begin(), runs.end(), [&](auto const& a, auto const& b) { return key(a) < key(b); });
  std::vector<StridedRuns> out;
  for (auto const& one : runs) {
    bool const follows = !out.empty() && one.count > 1 && out.back().count == one.count &&
                         out.back().stride_bytes == one.stride_bytes &&
                         out.back().first_byte + out.back().run_bytes == one.first_byte &&
                         out.back().run_bytes <= one.stride_bytes - one.run_bytes;
    if (follows) {
      out.back().run_bytes += one.run_bytes;
    } else {
      out.push_back(one);
    }
  }
  for (auto& one : out) {
    if (one.count > 1 && one.run_bytes == one.stride_bytes) one = {1, one.bytes(), one.first_byte, one.bytes()};
  }
  std::sort(out.begin(), out.end(), [](auto const& a, auto const& b) { return a.first_byte < b.first_byte; });
  return out;
}

/// Returns whether the pieces fill each byte of their target once. They are inside the target.
bool fill_once(std::vector<InputRuns> const& pieces, std::uint64_t bytes) {
  std::vector<StridedRuns> runs;
  for (auto const& piece : pieces)
    runs.push_back({piece.copy.from.count, piece.copy.from.run_bytes, piece.copy.to_first, piece.copy.to_stride});
  runs = joined(std::move(runs));
  // The next run of each set of runs, the lowest first.
  using Next = std::pair<std::uint64_t, std::size_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  std::vector<std::uint64_t> taken(runs.size(), 0);
  for (std::size_t i = 0; i < runs.size(); ++i) next.emplace(runs[i].first_byte, i);
  std::uint64_t end = 0;
  for (std::uint64_t step = 0; !next.empty(); ++step) {
    auto const [begin, i] = next.top();
    next.pop();
    if (begin != end || step == max_single_runs) return false;
    end += runs[i].run_bytes;
    if (++taken[i] < runs[i].count) next.emplace(runs[i].start(taken[i]), i);
  }
  return end == bytes;
}

class RecipeReader {
 public:
  RecipeReader(std::size_t stamps, std::string const& resource) : stamps_(stamps), resource_(resource) {}

  FileRecipe read(Json const& json) {
    if (!json.is_object() || json.size() != 2 || !json.contains("inputs") || !json.contains("tensors"))
      refuse("the recipe does not have inputs and tensors");
    for (auto const& input : list(json.at("inputs"))) recipe_.inputs.push_back(input_of(input));
    for (auto const& tensor : list(json.at("tensors"))) recipe_.tensors.push_back(tensor_of(tensor));
    return std::move(recipe_);
  }

 private:
  [[noreturn]] void refuse(std::string message) const {
    throw FormatError({.operation = parts_operation,
                       .message = "a recipe of this plan is wrong: " + std::move(message),
                       .resource = resource_,
                       .hint = recipe_hint,
                       .section = recipe_section});
  }

  [[nodiscard]] Json const& list(Json const& value) const {
    if (!value.is_array()) refuse("a list is " + std::string(value.type_name()));
    return value;
  }
  void require_length(Json const& value, std::size_t min, std::size_t max) const {
    if (list(value).size() < min || value.size() > max)
      refuse("a list has " + std::to_string(value.size()) + " values");
  }
  [[nodiscard]] std::uint64_t number(Json const& value, std::uint64_t max = longest) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > max)
      refuse("a number is not from 0 to " + std::to_string(max));
    return value.get<std::uint64_t>();
  }
  [[nodiscard]] std::int64_t signed_number(Json const& value) const {
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > longest))
      refuse("a number is not an integer of 64 bits");
    return value.get<std::int64_t>();
  }
  [[nodiscard]] int small(Json const& value) const {
    return static_cast<int>(number(value, std::numeric_limits<int>::max()));
  }

  [[nodiscard]] RecipeInput input_of(Json const& json) const {
    if (!json.is_object() || json.size() != 3 || !json.contains("files") || !json.contains("tensors") ||
        !json.contains("pieces") || !json.at("pieces").is_boolean())
      refuse("an input does not have files, pieces and tensors");
    RecipeInput input{.pieces = json.at("pieces").get<bool>()};
    for (auto const& file : list(json.at("files"))) input.files.push_back(number(file, longest));
    for (auto const file : input.files) {
      if (file >= stamps_) refuse("an input is not a file of the plan");
    }
    if (input.files.empty() || (!input.pieces && input.files.size() > 1)) refuse("an input has no file of its own");
    for (auto const& tensor : list(json.at("tensors"))) {
      require_length(tensor, 3, 3);
      input.tensors.push_back(described(tensor));
    }
    return input;
  }

  /// Reads name, dtype and shape, which are the first values of a list.
  [[nodiscard]] SourceTensor described(Json const& json) const {
    if (!json[0].is_string() || !json[1].is_string()) refuse("a tensor has no name or dtype");
    auto const dtype = parse_dtype(json[1].get_ref<std::string const&>());
    if (!dtype) refuse("a tensor has an unknown dtype");
    std::vector<std::int64_t> lengths;
    require_length(json[2], 0, Shape::max_rank);
    for (auto const& length : json[2]) lengths.push_back(static_cast<std::int64_t>(number(length)));
    std::uint64_t bytes = 0;
    if (codec::checked_byte_size(lengths, bits_of(*dtype), bytes) != codec::SizeStatus::fits || bytes > longest)
      refuse("a tensor is too large");
    return {.name = json[0].get<std::string>(), .dtype = *dtype, .shape = Shape(lengths)};
  }

  [[nodiscard]] SourceTensor const& tensor_at(TensorAt const& at) const {
    return recipe_.inputs[at.source].tensors[at.tensor];
  }
  [[nodiscard]] TensorAt place(Json const& source, Json const& tensor) const {
    if (number(source) >= recipe_.inputs.size() ||
        number(tensor) >= recipe_.inputs[source.get<std::size_t>()].tensors.size())
      refuse("an input tensor does not exist");
    return {static_cast<std::uint32_t>(number(source)), static_cast<std::uint32_t>(number(tensor))};
  }

  /// Throws unless the runs are in `bytes` bytes and do not overlap.
  void require_inside(StridedRuns const& runs, std::uint64_t bytes) const {
    std::uint64_t end = 0;
    bool const fits = runs.count > 0 && runs.run_bytes > 0 &&
                      !__builtin_mul_overflow(runs.count - 1, runs.stride_bytes, &end) &&
                      !__builtin_add_overflow(end, runs.first_byte, &end) &&
                      !__builtin_add_overflow(end, runs.run_bytes, &end) && end <= bytes;
    if (!fits) refuse("runs of bytes leave their tensor");
    if (runs.count > 1 && runs.stride_bytes < runs.run_bytes) refuse("runs of bytes overlap");
  }
  void require_inside(StridedRuns const& runs, TensorAt const& at) const {
    require_inside(runs, dense_bytes(tensor_at(at).shape, tensor_at(at).dtype));
  }

  [[nodiscard]] StridedRuns runs_of(Json const& json, std::size_t first) const {
    return {.count = number(json[first]),
            .run_bytes = number(json[first + 1]),
            .first_byte = number(json[first + 2]),
            .stride_bytes = number(json[first + 3])};
  }

  [[nodiscard]] InputRuns piece_of(Json const& json, std::uint64_t bytes) const {
    require_length(json, 8, 9);
    InputRuns piece{.input = place(json[0], json[1]),
                    .copy = {.from = runs_of(json, 2), .to_first = number(json[6]), .to_stride = number(json[7])},
                    .add = json.size() == 9 ? signed_number(json[8]) : 0};
    require_inside(piece.copy.from, piece.input);
    require_inside({.count = piece.copy.from.count,
                    .run_bytes = piece.copy.from.run_bytes,
                    .first_byte = piece.copy.to_first,
                    .stride_bytes = piece.copy.to_stride},
                   bytes);
    return piece;
  }

  [[nodiscard]] ReplicaRuns replica_of(Json const& json) const {
    require_length(json, 9, 9);
    ReplicaRuns replica{.kept = place(json[0], json[1]),
                        .other = place(json[2], json[3]),
                        .runs = runs_of(json, 4),
                        .must_differ = number(json[8], 1) == 1};
    require_inside(replica.runs, replica.kept);
    require_inside(replica.runs, replica.other);
    return replica;
  }

  [[nodiscard]] Reduce reduction_of(Json const& json) const {
    Reduce reduce{static_cast<ReduceOp>(small(json[0]))};
    if (reduce.op != ReduceOp::max && reduce.op != ReduceOp::min && reduce.op != ReduceOp::avg)
      refuse("an unknown operation combines values");
    return reduce;
  }

  [[nodiscard]] SumElement sum_of(Json const& json, MergedTensor const& tensor) const {
    if (tensor.dtype != Dtype::i32 && tensor.dtype != Dtype::i64) refuse("an element is summed that cannot be summed");
    SumElement sum{.element = small(json[0])};
    auto const elements = std::min<std::uint64_t>(tensor.bytes / (bits_of(tensor.dtype) / 8), max_elements);
    if (static_cast<std::uint64_t>(sum.element) >= elements) refuse("an element does not exist");
    for (auto const& part : list(json[1])) sum.parts.push_back(static_cast<std::int64_t>(number(part, max_part)));
    for (auto const& replicas : list(json[2])) sum.part_replicas.push_back(small(replicas));
    sum.replicas = small(json[3]);
    bool const divides =
        sum.replicas > 0 && std::find(sum.part_replicas.begin(), sum.part_replicas.end(), 0) == sum.part_replicas.end();
    bool const has_width =
        sum.parts.empty() || std::any_of(sum.parts.begin(), sum.parts.end(), [](auto const part) { return part > 0; });
    if (!divides || !has_width) refuse("a number of replicas or the width of all parts is 0");
    return sum;
  }

  void read_combination(Json const& json, MergedTensor& tensor) const {
    MergeRule rule;
    if (list(json).size() == 2) {
      rule.kind = reduction_of(json);
    } else {
      require_length(json, 5, 5);
      rule.kind = sum_of(json, tensor);
    }
    for (auto const& input : list(json.back())) {
      require_length(input, 2, 2);
      tensor.inputs.push_back(place(input[0], input[1]));
      auto const& of = tensor_at(tensor.inputs.back());
      if (of.dtype != tensor.dtype || of.shape != tensor.shape) refuse("values of different kinds are combined");
    }
    if (tensor.inputs.empty()) refuse("no values are combined");
    tensor.combined = tensor.inputs.size();
    tensor.rule = std::make_shared<MergeRule const>(std::move(rule));
  }

  [[nodiscard]] MergedTensor tensor_of(Json const& json) const {
    require_length(json, 5, 6);
    auto const about = described(json);
    MergedTensor tensor{.name = about.name,
                        .dtype = about.dtype,
                        .shape = about.shape,
                        .bytes = dense_bytes(about.shape, about.dtype),
                        .rule = copied_};
    for (auto const& piece : list(json[3])) tensor.pieces.push_back(piece_of(piece, tensor.bytes));
    for (auto const& replica : list(json[4])) tensor.replica_runs.push_back(replica_of(replica));
    bool const computed = json.size() == 6;
    if (computed) read_combination(json[5], tensor);
    if (computed ? !tensor.pieces.empty() : !fill_once(tensor.pieces, tensor.bytes))
      refuse("runs of bytes do not fill \"" + tensor.name + "\"");
    return tensor;
  }

  std::size_t stamps_;
  std::string const& resource_;
  std::shared_ptr<MergeRule const> copied_ = std::make_shared<MergeRule const>();  ///< of tensors that are only copied
  FileRecipe recipe_{};
};

}  // namespace

FileRecipe read_recipe(std::string_view text, std::size_t stamps, std::string const& resource) {
  auto const json = codec::parse_json(
      text,
      {.limits = codec::listing_limits,
       .about = {.operation = parts_operation, .resource = resource, .hint = recipe_hint, .section = recipe_section}});
  return RecipeReader(stamps, resource).read(json);
}

}  // namespace crossrank::checkpoint
