#include "workspace/checkpoint/memory/dcp_export.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "lib/codec/torch/dcp_metadata_writer.hpp"
#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/plan/merged_source.hpp"
#include "workspace/checkpoint/source/box_runs.hpp"
#include "workspace/checkpoint/write/dcp_output.hpp"

namespace crossrank::checkpoint {
namespace {

/// A box of a tensor of the result, and the ranks that can write it without receiving anything.
struct Chunk {
  std::size_t tensor = 0;
  std::vector<IndexRanges> entries{};
  std::vector<int> holders{};
  std::uint64_t bytes = 0;
};

/// Divides the tensors of a result into chunks and gives each chunk to a rank.
class ChunkPlan {
 public:
  explicit ChunkPlan(ExportPlan const& plan) : plan_(plan), load_(plan.cells.hosts.size()) {
    auto const& tensors = plan.layout->tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) add_tensor(i, tensors[i]);
  }

  /// Returns the chunks of each rank, in the order of the tensors.
  [[nodiscard]] std::vector<std::vector<PlacedTensor>> by_rank() {
    std::vector<std::size_t> order(chunks_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    // Chunks of one rank come first, then the largest ones, so that replicas balance the rest.
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
      auto const key = [&](Chunk const& chunk) { return std::pair(chunk.holders.size() == 1, chunk.bytes); };
      return key(chunks_[a]) > key(chunks_[b]);
    });
    std::vector<int> owner(chunks_.size());
    for (auto const i : order) {
      auto const& holders = chunks_[i].holders;
      owner[i] = *std::min_element(holders.begin(), holders.end(), [&](int a, int b) { return load(a) < load(b); });
      load(owner[i]) += chunks_[i].bytes;
    }
    std::vector<std::vector<PlacedTensor>> all(load_.size());
    for (std::size_t i = 0; i < chunks_.size(); ++i)
      at_rank(all, owner[i]).push_back({chunks_[i].tensor, std::move(chunks_[i].entries)});
    return all;
  }

 private:
  [[nodiscard]] std::uint64_t& load(int rank) { return at_rank(load_, rank); }

  void add_tensor(std::size_t number, MergedTensor const& tensor) {
    if (add_held_boxes(number, tensor)) return;
    Chunk whole{.tensor = number, .bytes = tensor.bytes};
    for (auto const length : tensor.shape) whole.entries.push_back(range_of(0, length));
    whole.holders = all_ranks(static_cast<int>(load_.size()));
    chunks_.push_back(std::move(whole));
  }

  /// Adds the boxes in which the ranks hold a tensor. Returns false if they hold something else.
  bool add_held_boxes(std::size_t number, MergedTensor const& tensor) {
    if (tensor.inputs.size() != 1 || tensor.bytes == 0) return false;
    auto const input = tensor.inputs.front();
    auto const& cell = *plan_.cells.cells[input.source];
    if (cell.tensors()[input.tensor].shape != tensor.shape) return false;
    std::vector<Chunk> found;
    for (auto const& box : cell.held(input.tensor).boxes) {
      Chunk chunk{.tensor = number, .entries = entries_of(tensor, cell.held(input.tensor), box.box)};
      if (chunk.entries.size() != tensor.shape.size()) return false;
      for (auto const& copy : box.copies) {
        if (copy.size() != 1) return false;
        chunk.holders.push_back(copy.front());
      }
      chunk.bytes = cell.held(input.tensor).unit;
      for (auto const length : box.box.size) chunk.bytes *= static_cast<std::uint64_t>(length);
      if (chunk.bytes > 0) found.push_back(std::move(chunk));
    }
    std::move(found.begin(), found.end(), std::back_inserter(chunks_));
    return true;
  }

  /// Returns the entries of a box in each dimension; none if a flat piece does not consist of whole rows.
  static std::vector<IndexRanges> entries_of(MergedTensor const& tensor, HeldTensor const& held,
                                             codec::ChunkBox const& box) {
    std::vector<IndexRanges> entries;
    auto const elements = element_group(tensor.dtype).elements;
    auto const dims = tensor.shape.size();
    if (held.lengths.size() == dims) {
      for (std::size_t dim = 0; dim < dims; ++dim) {
        auto const unit = dim + 1 == dims ? elements : 1;
        entries.push_back(range_of(box.begin[dim] * unit, box.size[dim] * unit));
      }
      return entries;
    }
    if (dims == 0 || tensor.shape[0] == 0) return entries;
    auto const row = tensor.shape.numel() / tensor.shape[0];
    auto const begin = box.begin.front() * elements;
    auto const size = box.size.front() * elements;
    if (row == 0 || begin % row != 0 || size % row != 0) return entries;
    entries.push_back(range_of(begin / row, size / row));
    for (std::size_t dim = 1; dim < dims; ++dim) entries.push_back(range_of(0, tensor.shape[dim]));
    return entries;
  }

  static IndexRanges range_of(std::int64_t begin, std::int64_t length) {
    return length > 0 ? IndexRanges{{begin, length}} : IndexRanges{};
  }

  ExportPlan const& plan_;
  std::vector<Chunk> chunks_{};
  std::vector<std::uint64_t> load_;  ///< bytes of each rank
};

std::string joined_path(DcpPath const& path) {
  std::string name;
  for (auto const& key : path) name += (name.empty() ? "" : ".") + key;
  return name;
}

/// The metadata of a checkpoint that is laid out.
class Metadata {
 public:
  Metadata(ExportPlan const& plan, DcpForm const& form) {
    for (auto const& tensor : plan.layout->tensors) {
      auto path = form.path_of(tensor.name);
      auto name = joined_path(path);
      all_.tensors.push_back(
          {.name = std::move(name), .path = std::move(path), .dtype = tensor.dtype, .shape = tensor.shape});
    }
    for (auto const& value : form.values) all_.objects.push_back({.name = joined_path(value.path), .path = value.path});
  }

  void add(std::vector<PlacedTensor> const& pieces, DcpOutput const& output) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto& tensor = all_.tensors[pieces[i].tensor];
      codec::ChunkBox box;
      for (auto const& ranges : pieces[i].entries) {
        box.begin.push_back(ranges.empty() ? 0 : ranges.front().begin);
        box.size.push_back(length_of(ranges));
      }
      tensor.boxes.push_back(std::move(box));
      tensor.items.push_back(output.tensors[i]);
    }
    for (std::size_t i = 0; i < output.objects.size(); ++i) all_.objects[i].item = output.objects[i];
  }

  [[nodiscard]] std::string text() const { return codec::write_dcp_metadata(all_); }

 private:
  codec::DcpMetadata all_{};
};

}  // namespace

DcpExport lay_out_dcp(ExportPlan const& plan, DcpForm const& form) {
  auto const merged = std::make_shared<MergedSource>(plan.layout);
  auto const placed = ChunkPlan(plan).by_rank();
  std::vector<Json> values;
  for (auto const& value : form.values) values.push_back(value.value);
  DcpExport out;
  DcpLayout layout(plan.cells.rank);
  Metadata metadata(plan, form);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    auto const rank = static_cast<int>(i);
    out.pieces.push_back(std::make_shared<PlacedSource const>(merged, placed[i]));
    std::shared_ptr<ShardSource const> source = out.pieces.back();
    if (rank == plan.cells.rank) {
      out.source = std::make_shared<ExportedSource>(source);
      source = out.source;
    }
    auto output = layout.lay_out(rank, source, rank == 0 ? std::span<Json const>(values) : std::span<Json const>());
    metadata.add(placed[i], output);
    if (output.file.bytes > 0) out.files.push_back(std::move(output.file));
  }
  if (plan.cells.rank == 0) out.metadata = metadata.text();
  return out;
}

std::vector<CellRange> inputs_of_piece(MergeLayout const& layout, PlacedSource const& pieces, WorkUnit const& unit) {
  std::vector<CellRange> ranges;
  pieces.for_each_input(unit.tensor, unit.offset, unit.bytes,
                        [&](std::size_t tensor, std::uint64_t begin, std::uint64_t bytes, std::uint64_t) {
                          for (auto const& range : inputs_of(layout, tensor, begin, bytes)) ranges.push_back(range);
                        });
  join_ranges(ranges);
  return ranges;
}

}  // namespace crossrank::checkpoint
