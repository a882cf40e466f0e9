#include "workspace/checkpoint/verify/duplicate_ranks.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr std::uint64_t max_bytes = std::uint64_t{64} << 10;
constexpr std::size_t max_listed_tensors = 8;

/// Returns whether each rank has its own piece. Ids to which the rank number is added may be equal on all ranks.
bool is_sharded(MergedTensor const& tensor) {
  auto const* const concat = std::get_if<Concatenate>(&tensor.rule->kind);
  return concat != nullptr && concat->replicas == 1 && concat->part_replicas.empty() && tensor.rule->ep_axis < 0 &&
         concat->add_per_rank == 0 && tensor.inputs.size() > 1;
}

/// Returns the beginning of a tensor; empty if all numbers are equal, because ones and zeros prove nothing.
std::vector<std::byte> beginning(MergeLayout const& layout, TensorAt at) {
  auto const& source = *layout.set.sources[at.source];
  auto const& tensor = source.tensors()[at.tensor];
  std::vector<std::byte> bytes(std::min(max_bytes, dense_bytes(tensor.shape, tensor.dtype)));
  if (!bytes.empty()) source.read(at.tensor, 0, bytes);
  auto const width = std::max<std::size_t>(1, bits_of(tensor.dtype) / 8);
  bool const constant =
      bytes.size() <= width || std::memcmp(bytes.data(), bytes.data() + width, bytes.size() - width) == 0;
  if (constant) bytes.clear();
  return bytes;
}

using Checksums = std::map<std::uint32_t, codec::StreamingChecksum>;

/// Returns checksums of the beginnings of some tensors, by source. Skips a tensor that is constant on any rank.
Checksums checksums_of(MergeLayout const& layout, std::vector<MergedTensor const*> const& tensors) {
  Checksums ranks;
  for (auto const* const tensor : tensors) {
    std::map<std::uint32_t, std::vector<std::byte>> starts;
    for (auto const& input : tensor->inputs) starts[input.source] = beginning(layout, input);
    bool const tells =
        std::none_of(starts.begin(), starts.end(), [](auto const& start) { return start.second.empty(); });
    for (auto const& [source, bytes] : starts) {
      if (tells) ranks[source].update(bytes);
    }
  }
  return ranks;
}

}  // namespace

std::vector<ReplicaFinding> find_duplicate_ranks(MergeLayout const& layout) {
  // Keyed by the first rank of each group.
  std::map<std::uint32_t, std::vector<MergedTensor const*>> groups;
  for (auto const& tensor : layout.tensors) {
    if (is_sharded(tensor)) groups[tensor.inputs.front().source].push_back(&tensor);
  }
  std::vector<ReplicaFinding> findings;
  for (auto& [first, tensors] : groups) {
    std::stable_sort(tensors.begin(), tensors.end(), [](auto const* a, auto const* b) { return a->bytes > b->bytes; });
    if (tensors.size() > max_listed_tensors) tensors.resize(max_listed_tensors);
    std::map<std::uint64_t, std::uint32_t> seen;
    for (auto const& [source, checksum] : checksums_of(layout, tensors)) {
      auto const [at, fresh] = seen.emplace(checksum.digest(), source);
      if (fresh) continue;
      findings.push_back({.tensor = tensors.front()->name,
                          .text = layout.set.sources[at->second]->name() + " and " +
                                  layout.set.sources[source]->name() +
                                  " hold the same bytes of every sharded tensor: one file is a copy of the other",
                          .kind = ReplicaProblem::duplicate});
    }
  }
  return findings;
}

}  // namespace crossrank::checkpoint
