#include "workspace/checkpoint/split_source.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "workspace/checkpoint/add_to_ids.hpp"
#include "workspace/checkpoint/read_runs.hpp"

namespace crossrank::checkpoint {
namespace {

[[noreturn]] void refuse(SourceTensor const& tensor, std::string message, std::string expected, std::string got,
                         std::string const& where) {
  throw FormatError({.operation = "split",
                     .message = "\"" + tensor.name + "\": " + std::move(message),
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = where,
                     .remedy = "give a size that divides it, or a rule that keeps it whole",
                     .section = "shards"});
}

/// The parts of a fused tensor and how many pieces each is cut into.
struct Parts {
  std::vector<std::int64_t> widths{};  ///< in the whole tensor
  std::vector<std::int64_t> pieces{};
};

Parts parts_of(SourceTensor const& tensor, MergeRule const& rule, std::size_t axis, int tp, std::string const& where) {
  auto const relative = rule.parts.empty() ? std::vector<std::int64_t>{1} : rule.parts;
  Parts parts;
  std::int64_t sum = 0;
  for (std::size_t p = 0; p < relative.size(); ++p) {
    int const replicas = p < rule.part_replicas.size() ? rule.part_replicas[p] : rule.replicas;
    if (replicas < 1 || tp % replicas != 0)
      refuse(tensor, "the ranks do not divide into groups of equal copies", "a divisor of " + std::to_string(tp),
             std::to_string(replicas), where);
    parts.pieces.push_back(tp / replicas);
    parts.widths.push_back(relative[p] * parts.pieces.back());
    sum += parts.widths.back();
  }
  auto const length = tensor.shape[axis];
  for (std::size_t p = 0; p < parts.widths.size(); ++p) {
    // Relative widths are those of one shard: weighted with its pieces they are those of the whole.
    if (sum <= 0 || length % sum != 0)
      refuse(tensor, "it cannot be cut into " + std::to_string(tp) + " equal pieces",
             "a multiple of " + std::to_string(sum) + " in dimension " + std::to_string(axis), std::to_string(length),
             where);
    parts.widths[p] *= length / sum;
  }
  return parts;
}

}  // namespace

SplitSource::SplitSource(std::shared_ptr<ShardSource const> whole, int rank, int tp, CutFor const& cut_for)
    : whole_(std::move(whole)), name_("rank " + std::to_string(rank) + " of " + std::to_string(tp)) {
  for (std::size_t i = 0; i < whole_->tensors().size(); ++i) {
    auto const& tensor = whole_->tensors()[i];
    auto const rule = cut_for(tensor);
    if (rule.kind == MergeKind::concat) {
      add_cut(i, rule, rank, tp);
    } else {
      auto const bytes = dense_bytes(tensor.shape, tensor.dtype);
      tensors_.push_back(tensor);
      pieces_.push_back(
          {{.from = {0, static_cast<std::uint32_t>(i)}, .run = bytes, .from_stride = bytes, .to_stride = bytes}});
    }
  }
}

void SplitSource::add_cut(std::size_t number, MergeRule const& rule, int rank, int tp) {
  auto const& tensor = whole_->tensors()[number];
  auto const dims = static_cast<int>(tensor.shape.size());
  int const signed_axis = rule.axis < 0 ? rule.axis + dims : rule.axis;
  if (signed_axis < 0 || signed_axis >= dims)
    refuse(tensor, "there is no dimension to cut along", "dimension " + std::to_string(rule.axis),
           to_string(tensor.shape), whole_->name());
  auto const axis = static_cast<std::size_t>(signed_axis);
  auto const parts = parts_of(tensor, rule, axis, tp, whole_->name());
  std::uint64_t rows = 1;
  for (std::size_t d = 0; d < axis; ++d) rows *= static_cast<std::uint64_t>(tensor.shape[d]);
  std::uint64_t bits = bits_of(tensor.dtype);
  for (auto d = axis + 1; d < tensor.shape.size(); ++d) bits *= static_cast<std::uint64_t>(tensor.shape[d]);
  auto const bytes = [&](std::int64_t count) {
    if (static_cast<std::uint64_t>(count) * bits % 8 != 0)
      refuse(tensor, "a cut falls inside a byte", "whole bytes", std::to_string(count), whole_->name());
    return static_cast<std::uint64_t>(count) * bits / 8;
  };
  std::int64_t mine = 0;
  for (std::size_t p = 0; p < parts.widths.size(); ++p) mine += parts.widths[p] / parts.pieces[p];
  std::vector<Piece> pieces;
  std::int64_t from = 0;
  std::int64_t to = 0;
  for (std::size_t p = 0; p < parts.widths.size(); ++p) {
    auto const width = parts.widths[p] / parts.pieces[p];
    auto const piece = rank / (tp / parts.pieces[p]);
    pieces.push_back({.from = {0, static_cast<std::uint32_t>(number)},
                      .rows = rows,
                      .run = bytes(width),
                      .from_at = bytes(from + piece * width),
                      .from_stride = bytes(tensor.shape[axis]),
                      .to_at = bytes(to),
                      .to_stride = bytes(mine),
                      .add = -rule.add_per_rank * rank});
    from += parts.widths[p];
    to += width;
  }
  tensors_.push_back({tensor.name, tensor.dtype, tensor.shape.with(axis, mine)});
  pieces_.push_back(std::move(pieces));
}

void SplitSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  for (auto const& piece : pieces_.at(tensor)) {
    Runs const runs{piece.rows, piece.run, piece.from_at, piece.from_stride, piece.to_at, piece.to_stride};
    read_runs(*whole_, piece.from.tensor, runs, offset, out);
    add_to_ids(piece, offset, out);
  }
}

}  // namespace crossrank::checkpoint
