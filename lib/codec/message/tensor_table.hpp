#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <boost/container/small_vector.hpp>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

namespace crossrank::codec {

/// Slot number of a tensor in the table's own payload.
inline constexpr std::uint32_t own_payload = 0xffff'ffff;

/// Slot number of a tensor that stays on its GPU; the payload has the handle of its memory at `offset`.
inline constexpr std::uint32_t in_place = 0xffff'fffe;

/// One tensor that a rank publishes.
struct TableEntry {
  std::string_view name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t offset = 0;          ///< first byte, in the payload or in the arena of the slot
  std::uint64_t nbytes = 0;          ///< size according to shape and dtype
  std::uint32_t slot = own_payload;  ///< arena slot of the tensor, `own_payload` or `in_place`
  std::uint64_t generation = 0;      ///< generation of the slot
  bool present = true;               ///< false for `Tensor{}`; then only the name is used
};

struct TableInput {
  std::string_view config{};  ///< result of `encode_config_binary`; empty without a config
  std::span<TableEntry const> entries{};
};

/// Entries of a table. A few of them, as in most gathers, need no heap memory.
using TableEntries = boost::container::small_vector<TableEntry, 2>;

/// A decoded table. `config` and the names view the decoded bytes.
struct TableView {
  std::string_view config{};
  TableEntries entries{};
};

/// Returns the number of bytes that `encode` will write. `UsageError` for a name over 1,024 bytes or a config over 16
/// MiB.
[[nodiscard]] std::size_t encoded_size(TableInput const& input);

/// Writes the table into `out`, whose size is `encoded_size(input)`. FORMAT.md describes the layout. Allocates nothing.
void encode(TableInput const& input, std::span<std::byte> out);

/// Reads a table that a peer wrote. Checks that tensors of the own payload lie inside `payload_bytes`; the caller
/// checks ranges in other slots. `FormatError` with section "table" and the byte for a malformed table.
[[nodiscard]] TableView decode(std::span<std::byte const> bytes, std::uint64_t payload_bytes);

}  // namespace crossrank::codec
