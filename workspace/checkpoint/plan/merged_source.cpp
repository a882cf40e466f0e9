#include "workspace/checkpoint/plan/merged_source.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "workspace/checkpoint/plan/shift_group_ids.hpp"
#include "workspace/checkpoint/source/strided_copy.hpp"
#include "workspace/checkpoint/quantization/reduce_values.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"

namespace crossrank::checkpoint {
namespace {

/// A shard whose stored values are requantized while they are read, in the order of the shard.
class ChangedSource final : public ShardSource {
 public:
  ChangedSource(ShardSource const& inner, Requantization const& change, std::size_t shard)
      : inner_(inner), change_(change), shard_(shard) {}
  [[nodiscard]] std::string const& name() const noexcept override { return inner_.name(); }
  [[nodiscard]] std::span<SourceTensor const> tensors() const noexcept override { return inner_.tensors(); }
  [[nodiscard]] Json const& attributes() const noexcept override { return inner_.attributes(); }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept override { return inner_.bytes_on_disk(); }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    inner_.read(tensor, offset, out);
    change_.apply(shard_, offset, out);
  }

 private:
  ShardSource const& inner_;
  Requantization const& change_;
  std::size_t shard_;
};

/// Returns the share of each rank in an unpacked length, without replicas.
Shares kept_shares(SumElement const& rule, std::size_t ranks) {
  auto const parts = rule.parts.empty() ? std::vector<std::int64_t>{1} : rule.parts;
  Shares shares{.of_rank = std::vector<std::int64_t>(ranks),
                .whole = std::accumulate(parts.begin(), parts.end(), std::int64_t{0})};
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t part = 0; part < parts.size(); ++part) {
      auto const replicas = as_size(part < rule.part_replicas.size() ? rule.part_replicas[part] : rule.replicas);
      if (rank % replicas == 0) shares.of_rank[rank] += parts[part];
    }
  }
  return shares;
}

}  // namespace

MergedSource::MergedSource(std::shared_ptr<MergeLayout const> layout)
    : DescribedSource("the merged checkpoint"), layout_(std::move(layout)) {
  tensors_.reserve(layout_->tensors.size());
  for (auto const& tensor : layout_->tensors) tensors_.push_back({tensor.name, tensor.dtype, tensor.shape});
}

bool MergedSource::is_in_memory() const noexcept {
  auto const& sources = layout_->set.sources;
  return std::all_of(sources.begin(), sources.end(), [](auto const& source) { return source->is_in_memory(); });
}

std::vector<std::string> MergedSource::files_of(std::size_t tensor) const {
  auto const& merged = layout_->tensors.at(tensor);
  if (layout_->set.opened_from != OpenedFrom::files || !comes_from_inputs_alone(merged)) return {};
  std::vector<std::string> files;
  auto const add = [&](TensorAt const& input) {
    for (auto& file : layout_->set.sources[input.source]->files_of(input.tensor)) files.push_back(std::move(file));
  };
  for (auto const& input : merged.inputs) add(input);
  for (auto const& piece : merged.pieces) add(piece.input);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

void MergedSource::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  if (tensor >= layout_->tensors.size() || offset > layout_->tensors[tensor].bytes ||
      out.size() > layout_->tensors[tensor].bytes - offset) {
    throw UsageError({.operation = "merge",
                      .message = "the tensor does not have these bytes",
                      .got = std::to_string(out.size()) + " from " + std::to_string(offset) + " of tensor " +
                             std::to_string(tensor)});
  }
  auto const& planned = layout_->tensors[tensor];
  if (planned.rule->combines_values()) return read_combined(planned, offset, out);
  if (auto const* const values = std::get_if<UsePrecomputed>(&planned.rule->kind)) {
    if (!out.empty()) copy_memory(out.data(), values->bytes.data() + offset, out.size());
    return;
  }
  std::uint64_t filled = 0;
  for (auto const& piece : planned.pieces) filled += read_input_runs(piece, offset, out);
  require_filled(tensors_[tensor].name, filled, out.size());
}

std::uint64_t MergedSource::read_input_runs(InputRuns const& piece, std::uint64_t offset,
                                            std::span<std::byte> out) const {
  if (!piece.copy.reaches(offset, out.size())) return 0;
  auto const& source = *layout_->set.sources[piece.input.source];
  auto const filled = piece.change == nullptr ? read_strided_runs(source, piece.input.tensor, piece.copy, offset, out)
                                              : read_strided_runs(ChangedSource(source, *piece.change, piece.shard),
                                                                  piece.input.tensor, piece.copy, offset, out);
  shift_group_ids(piece, offset, out);
  return filled;
}

void MergedSource::read_combined(MergedTensor const& tensor, std::uint64_t offset, std::span<std::byte> out) const {
  for (auto const& range : combined_ranges(*layout_, tensor, offset, out.size())) {
    std::vector<std::vector<std::byte>> values;
    for (auto const& input : range.inputs)
      layout_->set.sources[input.source]->read(input.tensor, range.begin, values.emplace_back(range.end - range.begin));
    std::vector<std::byte> result(range.end - range.begin);
    if (auto const* const sum = std::get_if<SumElement>(&tensor.rule->kind)) {
      sum_element(tensor.dtype, as_size(sum->element), values, kept_shares(*sum, values.size()), result);
    } else {
      reduce_values(tensor.dtype, std::get<Reduce>(tensor.rule->kind).op, values, result);
    }
    auto const begin = std::max(offset, range.at);
    auto const end = std::min(offset + out.size(), range.at + result.size());
    copy_memory(out.data() + (begin - offset), result.data() + (begin - range.at), end - begin);
  }
}

ShardSet as_whole(std::shared_ptr<MergeLayout const> const& layout) {
  ShardSet set;
  set.sources.push_back(std::make_shared<MergedSource>(layout));
  set.places.emplace_back();
  set.config = layout->set.config;
  set.quantization = layout->set.quantization;
  return set;
}

}  // namespace crossrank::checkpoint
