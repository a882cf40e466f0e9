#include "workspace/checkpoint/source/torch/megatron_names.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/model/name_pattern.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

using Tensors = std::vector<DcpModelTensor>;

[[noreturn]] void refuse_names(std::string const& resource, std::string message, std::string got, std::string hint) {
  throw FormatError({.operation = open_operation,
                     .message = std::move(message),
                     .got = std::move(got),
                     .resource = resource,
                     .hint = std::move(hint),
                     .section = to_string(ErrorSection::name)});
}

/// A name split where the number of the layer or expert belongs.
struct StackedName {
  std::string before{};  ///< "decoder.layers."
  std::string after{};   ///< ".mlp.linear_fc2.weight"
};

/// How Megatron-core names a stack, and how its modules name one element.
struct StackKind {
  std::string_view stacked{};  ///< elements that a number does not follow
  std::string_view own{};      ///< elements before the number
  bool by_ones = false;        ///< whether each piece has one element
};

constexpr StackKind layer_stack{"layers", "layers", true};
constexpr StackKind expert_stack{"experts.experts", "experts.local_experts", false};

/// Returns the position behind `elements` in a name, if other elements follow.
std::size_t find_behind(std::string_view name, std::string_view elements) {
  for (auto at = name.find(elements); at != std::string_view::npos; at = name.find(elements, at + 1)) {
    auto const end = at + elements.size();
    if ((at == 0 || name[at - 1] == '.') && end + 1 < name.size() && name[end] == '.') return end;
  }
  return std::string_view::npos;
}

std::optional<StackedName> find_stack(std::string_view name, StackKind const& kind) {
  auto const end = find_behind(name, kind.stacked);
  if (end == std::string_view::npos) return std::nullopt;
  auto const next = name.substr(end + 1, name.find('.', end + 1) - end - 1);
  if (is_number(next)) return std::nullopt;
  auto const begin = end - kind.stacked.size();
  return StackedName{std::string(name.substr(0, begin)) + std::string(kind.own) + '.', std::string(name.substr(end))};
}

/// Returns whether each element of the stack is a range of bytes in its pieces.
bool can_unstack(DcpModelTensor const& tensor, StackKind const& kind) {
  if (tensor.shape.empty() || tensor.shape[0] < 1) return false;
  bool const ones =
      std::all_of(tensor.boxes.begin(), tensor.boxes.end(), [](auto const& box) { return box.size[0] == 1; });
  return ones || (!kind.by_ones && bits_of(tensor.dtype) % 8 == 0);
}

/// The tensors of one stack must agree in their first lengths.
struct StackState {
  std::int64_t length = -1;
  bool sound = true;
};

/// Returns the piece without its first dimension, for element `number` of the piece.
DcpRows row_of(DcpModelTensor const& tensor, std::size_t piece, std::int64_t number) {
  auto const& box = tensor.boxes[piece];
  auto rows = tensor.rows[piece];
  rows.bytes /= static_cast<std::uint64_t>(box.size[0]);
  rows.first_byte += rows.bytes * static_cast<std::uint64_t>(number);
  return rows;
}

void unstack(DcpModelTensor const& tensor, StackedName const& name, Tensors& out) {
  auto const first = out.size();
  auto const lengths = std::vector<std::int64_t>(tensor.shape.begin() + 1, tensor.shape.end());
  for (std::int64_t i = 0; i < tensor.shape[0]; ++i) {
    out.push_back({.name = name.before + std::to_string(i) + name.after,
                   .saved_as = tensor.saved_as,
                   .dtype = tensor.dtype,
                   .shape = Shape(lengths)});
  }
  for (std::size_t piece = 0; piece < tensor.boxes.size(); ++piece) {
    auto const& box = tensor.boxes[piece];
    for (std::int64_t i = 0; i < box.size[0]; ++i) {
      auto& own = out[first + as_size(box.begin[0] + i)];
      own.boxes.push_back({{box.begin.begin() + 1, box.begin.end()}, {box.size.begin() + 1, box.size.end()}});
      own.rows.push_back(row_of(tensor, piece, i));
    }
  }
}

/// Counts what unstacking takes, so that a short description cannot ask for any amount of memory.
class UnstackingCost {
 public:
  void add(DcpModelTensor const& tensor) {
    auto const length = static_cast<std::uint64_t>(tensor.shape[0]);
    std::uint64_t pieces = std::min(length, max_pieces + 1);
    for (auto const& box : tensor.boxes)
      pieces += std::min(static_cast<std::uint64_t>(box.size[0]), max_pieces + 1);  // at most 2^24 boxes of 2^22
    pieces_ += pieces;
    name_bytes_ += std::min(length, max_pieces + 1) * tensor.name.size();
  }
  [[nodiscard]] bool is_too_high() const noexcept { return pieces_ > max_pieces || name_bytes_ > max_total_name_bytes; }

 private:
  static constexpr std::uint64_t max_pieces = std::uint64_t{1} << 22U;
  static constexpr std::uint64_t max_total_name_bytes = std::uint64_t{256} << 20U;
  std::uint64_t pieces_ = 0;
  std::uint64_t name_bytes_ = 0;
};

/// Replaces each stack of a kind by its elements.
Tensors without_stacks(Tensors tensors, StackKind const& kind, std::string const& resource) {
  std::vector<std::optional<StackedName>> names;
  std::unordered_map<std::string, StackState> stacks;
  for (auto const& tensor : tensors) {
    names.push_back(find_stack(tensor.name, kind));
    if (!names.back()) continue;
    auto& stack = stacks[names.back()->before];
    auto const length = tensor.shape.empty() ? 0 : tensor.shape[0];
    if (stack.length < 0) stack.length = length;
    stack.sound = stack.sound && stack.length == length && can_unstack(tensor, kind);
  }
  UnstackingCost cost;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    bool const unstacks = names[i] && stacks[names[i]->before].sound;
    if (!unstacks) names[i].reset();
    if (unstacks) cost.add(tensors[i]);
    if (!cost.is_too_high()) continue;
    refuse_names(resource, "there are more layers or experts in stacks than are supported",
                 tensors[i].name + " " + to_string(tensors[i].shape), "check that the checkpoint is not damaged");
  }
  Tensors out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (names[i]) {
      unstack(tensors[i], *names[i], out);
    } else {
      out.push_back(std::move(tensors[i]));
    }
  }
  return out;
}

/// Gives experts that are saved one by one the names of their modules.
void name_single_experts(Tensors& tensors) {
  for (auto& tensor : tensors) {
    auto const end = find_behind(tensor.name, expert_stack.stacked);
    if (end == std::string::npos) continue;
    auto const number = std::string_view(tensor.name).substr(end + 1, tensor.name.find('.', end + 1) - end - 1);
    if (is_number(number))
      tensor.name.replace(end - expert_stack.stacked.size(), expert_stack.stacked.size(), expert_stack.own);
  }
}

/// Appends the second half of a gated layer to the first half.
void append_half(DcpModelTensor& whole, DcpModelTensor const& half) {
  auto const begin = whole.shape[0];
  whole.shape = whole.shape.with(0, begin * 2);
  for (std::size_t i = 0; i < half.boxes.size(); ++i) {
    auto box = half.boxes[i];
    box.begin[0] += begin;
    whole.boxes.push_back(std::move(box));
    whole.rows.push_back(half.rows[i]);
  }
}

/// Joins the halves of gated layers that are saved one by one.
Tensors without_halves(Tensors tensors, std::string const& resource) {
  std::map<std::string, std::array<std::optional<std::size_t>, 2>> halves;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::string_view const name = tensors[i].name;
    bool const gated = name.ends_with("linear_fc1.weight_w") || name.ends_with("linear_fc1.bias_w");
    bool const up = name.ends_with("linear_fc1.weight_v") || name.ends_with("linear_fc1.bias_v");
    if (gated || up) halves[std::string(name.substr(0, name.size() - 2))][up ? 1 : 0] = i;
  }
  std::vector<bool> joined(tensors.size());
  for (auto const& [name, both] : halves) {
    auto const hint = "copy the checkpoint again, or save it again with the program that wrote it";
    if (!both[0] || !both[1]) {
      refuse_names(resource, "one half of the gated layer \"" + name + "\" is missing",
                   "only \"" + tensors[both[0] ? *both[0] : *both[1]].name + "\"", hint);
    }
    auto& first = tensors[*both[0]];
    auto const& second = tensors[*both[1]];
    if (first.dtype != second.dtype || !(first.shape == second.shape) || first.shape.empty()) {
      refuse_names(resource, "the halves of the gated layer \"" + name + "\" differ",
                   to_string(first.shape) + " and " + to_string(second.shape), hint);
    }
    append_half(first, second);
    first.name = name;
    joined[*both[1]] = true;
  }
  Tensors out;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!joined[i]) out.push_back(std::move(tensors[i]));
  }
  return out;
}

}  // namespace

std::vector<DcpModelTensor> with_megatron_names(std::vector<DcpModelTensor> tensors, std::string const& resource) {
  tensors = without_stacks(std::move(tensors), layer_stack, resource);
  tensors = without_stacks(std::move(tensors), expert_stack, resource);
  name_single_experts(tensors);
  tensors = without_halves(std::move(tensors), resource);
  std::unordered_map<std::string_view, DcpModelTensor const*> known;
  for (auto const& tensor : tensors) {
    auto const [other, is_new] = known.emplace(tensor.name, &tensor);
    if (is_new) continue;
    refuse_names(resource, "two tensors are the weight \"" + tensor.name + "\"",
                 "\"" + other->second->saved_as + "\" and \"" + tensor.saved_as + "\"",
                 "the checkpoint was put together from different saves: copy one save");
  }
  return tensors;
}

}  // namespace crossrank::checkpoint
