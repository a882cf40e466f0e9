#include "workspace/checkpoint/memory/file_owners.hpp"

#include <algorithm>
#include <numeric>

#include "lib/core/at_rank.hpp"
#include "workspace/checkpoint/write/output_writer.hpp"

namespace crossrank::checkpoint {
namespace {

/// Returns how many bytes of a file each rank holds.
std::vector<std::uint64_t> held_bytes(OutputFile const& file, MergeLayout const& layout, WeightCells const& cells) {
  std::vector<std::uint64_t> held(cells.hosts.size());
  for (auto const& placed : file.tensors) {
    for (auto const& piece : layout.tensors[placed.tensor].pieces) {
      auto const& cell = *cells.cells[piece.input.source];
      auto const& tensor = cell.tensors()[piece.input.tensor];
      auto const whole = std::max<std::uint64_t>(1, dense_bytes(tensor.shape, tensor.dtype));
      for (auto const& box : cell.held(piece.input.tensor).boxes) {
        std::uint64_t bytes = cell.held(piece.input.tensor).unit;
        for (auto const length : box.box.size) bytes *= static_cast<std::uint64_t>(length);
        auto const share = static_cast<double>(bytes) / static_cast<double>(whole);
        auto const used = static_cast<std::uint64_t>(share * static_cast<double>(piece.copy.from.bytes()));
        for (auto const& copy : box.copies) {
          if (copy.size() == 1) at_rank(held, copy.front()) += used;
        }
      }
    }
  }
  return held;
}

}  // namespace

void assign_owners_by_bytes(std::span<OutputFile> files, MergeLayout const& layout, WeightCells const& cells) {
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return files[a].bytes > files[b].bytes; });
  std::vector<std::uint64_t> load(cells.hosts.size());
  for (auto const i : order) {
    auto const held = held_bytes(files[i], layout, cells);
    auto const least = *std::min_element(load.begin(), load.end());
    std::size_t best = load.size();
    for (std::size_t rank = 0; rank < load.size(); ++rank) {
      // Files of one export have about the same size; a rank may be ahead by half a file.
      if (load[rank] > least + files[i].bytes / 2) continue;
      if (best == load.size() || held[rank] > held[best]) best = rank;
    }
    files[i].owner = static_cast<int>(best);
    load[best] += files[i].bytes;
  }
}

std::vector<std::vector<WorkUnit>> units_of(std::span<OutputFile const> files, int ranks) {
  constexpr auto slice = OutputWriter::slice_bytes;
  auto units = per_rank<std::vector<WorkUnit>>(ranks);
  for (auto const& file : files) {
    auto& own = at_rank(units, file.owner);
    for (auto const& tensor : file.tensors) {
      auto const end = tensor.begin + tensor.bytes;
      for (auto at = tensor.begin; at < end;) {
        auto const next = std::min(end, (at / slice + 1) * slice);
        own.push_back({static_cast<std::uint32_t>(tensor.tensor), at - tensor.begin, next - at});
        at = next;
      }
    }
  }
  return units;
}

}  // namespace crossrank::checkpoint
