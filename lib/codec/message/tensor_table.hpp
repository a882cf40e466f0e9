#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <boost/container/small_vector.hpp>

#include <crossrank/dtype.hpp>
#include <crossrank/shape.hpp>

namespace crossrank::codec {

/// Stands for "in the payload that the table belongs to" where a slot is asked for.
inline constexpr std::uint32_t own_payload = 0xffff'ffff;

/// One tensor that a rank publishes.
struct TableEntry {
  std::string_view name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::uint64_t offset = 0;          ///< first byte: in the payload, or in the arena that holds the slot
  std::uint64_t nbytes = 0;          ///< what shape and dtype come to
  std::uint32_t slot = own_payload;  ///< arena slot in which the tensor lives, or `own_payload`
  std::uint64_t generation = 0;      ///< of that slot
  bool present = true;               ///< false for `Tensor{}`: nothing but the name counts
};

struct TableInput {
  std::string_view config{};  ///< as `encode_config_binary` writes it; empty for none
  std::span<TableEntry const> entries{};
};

/// Entries of a table: few of them, as in most calls of the gathers, cost no memory from the heap.
using TableEntries = boost::container::small_vector<TableEntry, 2>;

/// A decoded table; `config` and the names view the bytes it was decoded from.
struct TableView {
  std::string_view config{};
  TableEntries entries{};
};

/// Bytes that `encode` will write. `UsageError` for a name over 1,024 bytes or a config over 16 MiB.
[[nodiscard]] std::size_t encoded_size(TableInput const& input);

/// Writes the table into `out`, whose size is `encoded_size(input)`. The layout stands in FORMAT.md. Allocates nothing.
void encode(TableInput const& input, std::span<std::byte> out);

/// Reads a table that a peer wrote. Tensors of the own payload lie inside `payload_bytes`; ranges in other slots are
/// the caller's to check. `FormatError` with section "table" and the byte for whatever is not as `encode` writes it.
[[nodiscard]] TableView decode(std::span<std::byte const> bytes, std::uint64_t payload_bytes);

}  // namespace crossrank::codec
