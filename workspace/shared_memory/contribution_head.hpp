#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "lib/codec/message/tensor_table.hpp"
#include "lib/core/round_up.hpp"
#include "workspace/shared_memory/contribution.hpp"

namespace crossrank::workspace {

/// Returns `bytes` rounded up to a whole number of cache lines. The tensors of a contribution start at such offsets.
[[nodiscard]] constexpr std::size_t aligned(std::size_t bytes) {
  constexpr std::size_t cache_line = 64;
  return round_up(bytes, cache_line);
}

/// The start of a contribution in one buffer, such as a slab. The table follows directly, then the tensors.
struct ContributionHead {
  std::uint64_t table_bytes;
  std::uint64_t data_offset;  ///< of the tensors, from the start of the buffer

  [[nodiscard]] static constexpr ContributionHead before(std::size_t table_bytes) {
    return {table_bytes, aligned(sizeof(ContributionHead) + table_bytes)};
  }
};

/// Returns the entry of a tensor in the table, without the place of its bytes. The name must outlive it.
[[nodiscard]] inline codec::TableEntry entry_of(NamedTensor const& named) {
  auto const& tensor = *named.tensor;
  if (!tensor.defined()) return {.name = named.name, .present = false};
  return {.name = named.name, .dtype = tensor.dtype(), .shape = tensor.shape(), .nbytes = tensor.nbytes()};
}

/// The table and the tensors of a contribution, as bytes.
struct ContributionParts {
  std::span<std::byte const> table{};
  std::span<std::byte const> data{};
};

/// Divides a buffer that starts with a `ContributionHead`. Returns nothing when the head is cut off or names bytes
/// outside the buffer.
[[nodiscard]] inline std::optional<ContributionParts> divide(std::span<std::byte const> buffer) {
  ContributionHead head{};
  if (buffer.size() < sizeof head) return {};
  std::memcpy(&head, buffer.data(), sizeof head);
  bool const fits = head.data_offset <= buffer.size() && head.table_bytes <= buffer.size() - sizeof head &&
                    sizeof head + head.table_bytes <= head.data_offset;
  if (!fits) return {};
  return ContributionParts{buffer.subspan(sizeof head, head.table_bytes), buffer.subspan(head.data_offset)};
}

}  // namespace crossrank::workspace
