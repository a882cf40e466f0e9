#include "workspace/checkpoint/plan/split_source.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/model/error_sections.hpp"
#include "workspace/checkpoint/plan/shift_group_ids.hpp"
#include "workspace/checkpoint/source/strided_copy.hpp"

namespace crossrank::checkpoint {
namespace {

/// Overwrites one integer of a small tensor, as far as it is inside `out`.
void set_integer(Dtype dtype, int element, std::int64_t value, std::uint64_t offset, std::span<std::byte> out) {
  auto const width = bits_of(dtype) / 8;
  auto const begin = static_cast<std::uint64_t>(element) * width;
  std::byte bytes[sizeof value];
  // Little-endian: the low bytes come first.
  std::memcpy(bytes, &value, sizeof value);
  for (std::uint64_t i = 0; i < width && i < sizeof value; ++i) {
    if (begin + i >= offset && begin + i < offset + out.size()) out[begin + i - offset] = bytes[i];
  }
}

}  // namespace

SplitSource::SplitSource(std::shared_ptr<ShardSource const> whole, std::size_t rank, SplitRuleFor const& split_rule_for)
    : DescribedSource("rank " + std::to_string(rank)), whole_(std::move(whole)) {
  for (std::size_t i = 0; i < whole_->tensors().size(); ++i) {
    auto const& tensor = whole_->tensors()[i];
    auto const rule = split_rule_for(tensor);
    if (rule.drop) continue;
    ShardTensor shard;
    if (rule.axis >= 0) {
      shard.pieces = runs_for_rank(static_cast<std::uint32_t>(i), rule, rank);
      tensors_.push_back({tensor.name, tensor.dtype, rule.shape(tensor.shape, static_cast<int>(rank))});
    } else {
      auto const bytes = dense_bytes(tensor.shape, tensor.dtype);
      shard.pieces.push_back({.input = {0, static_cast<std::uint32_t>(i)}, .copy = StridedCopy::whole(bytes)});
      tensors_.push_back(tensor);
    }
    if (rule.set_element >= 0) {
      shard.set_element = rule.set_element;
      shard.value = rule.elements.at(rank);
    }
    shard_tensors_.push_back(std::move(shard));
  }
}

std::vector<InputRuns> SplitSource::runs_for_rank(std::uint32_t number, SplitRule const& rule, std::size_t rank) const {
  auto const& tensor = whole_->tensors()[number];
  auto const axis = as_size(rule.axis);
  std::uint64_t rows = 1;
  for (std::size_t d = 0; d < axis; ++d) rows *= static_cast<std::uint64_t>(tensor.shape[d]);
  std::uint64_t skipped = 0;
  if (!rule.experts.empty() && axis > 0 && tensor.shape[0] > 0) {
    auto const& own = rule.experts.at(rank);
    auto const each = rows / static_cast<std::uint64_t>(tensor.shape[0]);
    rows = each * static_cast<std::uint64_t>(own.length);
    skipped = each * static_cast<std::uint64_t>(own.begin);
  }
  std::uint64_t bits = bits_of(tensor.dtype);
  for (auto d = axis + 1; d < tensor.shape.size(); ++d) bits *= static_cast<std::uint64_t>(tensor.shape[d]);
  auto const bytes = [&](std::int64_t count) {
    auto const all = static_cast<std::uint64_t>(count) * bits;
    if (all % 8 != 0) {
      throw FormatError({.operation = "split",
                         .message = "\"" + tensor.name + "\": a shard ends inside a byte",
                         .expected = "whole bytes",
                         .got = std::to_string(all) + " bits",
                         .resource = whole_->name(),
                         .hint = "choose a number of ranks that divides it, or a rule that keeps it whole",
                         .section = to_string(ErrorSection::shards)});
    }
    return all / 8;
  };
  auto const mine = rule.length(static_cast<int>(rank));
  std::vector<InputRuns> pieces;
  if (rows == 0) return pieces;
  for (auto const& part : rule.ranks.at(rank)) {
    auto const row_bytes = bytes(tensor.shape[axis]);
    InputRuns piece{.input = {0, number}, .add = -rule.subtract_per_group * static_cast<std::int64_t>(rank)};
    piece.copy = {.from = {.count = rows,
                           .run_bytes = bytes(part.length),
                           .first_byte = bytes(part.from) + skipped * row_bytes,
                           .stride_bytes = row_bytes},
                  .to_first = bytes(part.to),
                  .to_stride = bytes(mine)};
    piece.copy.merge_adjacent();
    if (piece.copy.from.run_bytes > 0) pieces.push_back(piece);
  }
  return pieces;
}

std::vector<std::string> SplitSource::files_of(std::size_t tensor) const {
  std::vector<std::string> files;
  for (auto const& piece : shard_tensors_.at(tensor).pieces) {
    auto const of_piece = whole_->files_of(piece.input.tensor);
    if (of_piece.empty()) return {};
    files.insert(files.end(), of_piece.begin(), of_piece.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

void SplitSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  auto const& shard = shard_tensors_.at(tensor);
  std::uint64_t filled = 0;
  for (auto const& piece : shard.pieces) {
    if (!piece.copy.reaches(offset, out.size())) continue;
    filled += read_strided_runs(*whole_, piece.input.tensor, piece.copy, offset, out);
    shift_group_ids(piece, offset, out);
  }
  require_filled(tensors_[tensor].name, filled, out.size());
  if (shard.set_element >= 0) set_integer(tensors_[tensor].dtype, shard.set_element, shard.value, offset, out);
}

std::string SplitSource::explain(std::size_t tensor) const {
  auto const& shard = shard_tensors_.at(tensor);
  std::string text;
  for (auto const& piece : shard.pieces) {
    auto const& runs = piece.copy.from;
    text += "    " + std::to_string(runs.count) + " x " + std::to_string(runs.run_bytes) + " bytes from byte " +
            std::to_string(runs.first_byte) + " (every " + std::to_string(runs.stride_bytes) + ")";
    if (piece.add != 0) text += ", " + std::to_string(piece.add) + " added to each";
    text += "\n";
  }
  if (shard.set_element >= 0)
    text += "    then element " + std::to_string(shard.set_element) + " is " + std::to_string(shard.value) + "\n";
  return text;
}

}  // namespace crossrank::checkpoint
