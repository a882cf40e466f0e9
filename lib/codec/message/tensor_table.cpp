#include "lib/codec/message/tensor_table.hpp"

#include <bit>
#include <cstring>
#include <string>

#include <crossrank/error.hpp>

#include "lib/codec/io/checked_size.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/core/round_up.hpp"
#include "lib/tensor/copy_memory.hpp"

namespace crossrank::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "the table is copied byte by byte");

constexpr std::uint32_t table_magic = 0x3242'5458;  // "XTB2"
constexpr std::uint8_t flag_present = 1;

struct TableHead {
  std::uint32_t magic;
  std::uint32_t entries;
  std::uint64_t total_bytes;
  std::uint64_t config_bytes;
};
static_assert(sizeof(TableHead) == 24);

struct EntryHead {
  std::uint64_t offset;
  std::uint64_t nbytes;
  std::uint64_t generation;
  std::uint32_t slot;
  std::uint32_t name_bytes;
  std::uint8_t dtype;
  std::uint8_t rank;
  std::uint8_t flags;
  std::uint8_t zero[5];
};
static_assert(sizeof(EntryHead) == 40);

constexpr std::size_t padded(std::size_t bytes) { return round_up(bytes, 8); }

class TableWriter {
 public:
  explicit TableWriter(std::span<std::byte> out) : out_(out) {}
  void put(void const* from, std::size_t bytes) {
    if (bytes > 0) copy_memory(out_.data() + at_, from, bytes);
    at_ += bytes;
  }
  void put_text(std::string_view text) {
    put(text.data(), text.size());
    constexpr std::uint64_t zeros = 0;
    put(&zeros, padded(text.size()) - text.size());
  }

 private:
  std::span<std::byte> out_;
  std::size_t at_ = 0;
};

[[noreturn]] void refuse(std::size_t at, char const* message, std::string expected = {}, std::string got = {}) {
  throw FormatError({.operation = "tensor table",
                     .message = message,
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .section = "table",
                     .offset = at});
}

/// Reads the bytes once. Copies each field before checking it, because a peer may still write it.
class TableReader {
 public:
  explicit TableReader(std::span<std::byte const> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::size_t at() const noexcept { return at_; }
  [[nodiscard]] std::size_t left() const noexcept { return bytes_.size() - at_; }
  void take(void* to, std::size_t bytes, char const* message) {
    if (bytes > left()) refuse(at_, message, std::to_string(bytes) + " bytes", std::to_string(left()));
    if (bytes > 0) std::memcpy(to, bytes_.data() + at_, bytes);
    at_ += bytes;
  }
  std::string_view take_text(std::uint64_t bytes, char const* message) {
    if (bytes > left() || padded(bytes) > left())
      refuse(at_, message, std::to_string(bytes) + " bytes", std::to_string(left()));
    std::string_view const text(reinterpret_cast<char const*>(bytes_.data()) + at_, bytes);
    for (auto i = at_ + bytes; i < at_ + padded(bytes); ++i) {
      if (bytes_[i] != std::byte{0}) refuse(i, "the padding is not zero");
    }
    at_ += padded(bytes);
    return text;
  }

 private:
  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
};

void check_range(EntryHead const& head, TableEntry const& entry, std::size_t at, std::uint64_t payload_bytes) {
  std::uint64_t bytes = 0;
  auto const verdict = checked_byte_size(entry.shape, bits_of(entry.dtype), bytes);
  if (verdict == SizeStatus::overflows) refuse(at, "the size of a tensor overflows");
  if (verdict == SizeStatus::splits_a_byte || bytes != head.nbytes) {
    refuse(at, "shape and size of a tensor disagree", to_string(entry.shape), std::to_string(head.nbytes) + " bytes");
  }
  if (head.slot != own_payload) return;
  if (head.offset > payload_bytes || head.nbytes > payload_bytes - head.offset) {
    refuse(at, "a tensor does not lie inside its payload", "at most " + std::to_string(payload_bytes) + " bytes",
           std::to_string(head.nbytes) + " from " + std::to_string(head.offset));
  }
}

void take_entry(TableReader& reader, std::uint64_t payload_bytes, TableEntry& entry) {
  auto const at = reader.at();
  EntryHead head{};
  reader.take(&head, sizeof(head), "the table ends inside an entry");
  constexpr std::uint8_t zeros[5] = {};
  if (head.flags > flag_present || std::memcmp(head.zero, zeros, sizeof(zeros)) != 0)
    refuse(at, "an entry has unknown flags");
  if (head.dtype >= dtype_count) refuse(at, "an entry has an unknown dtype", {}, std::to_string(head.dtype));
  if (head.rank > Shape::max_rank) refuse(at, "an entry has too many dimensions", {}, std::to_string(head.rank));
  if (head.name_bytes > max_name_bytes) refuse(at, "a name is too long", {}, std::to_string(head.name_bytes));

  std::int64_t lengths[Shape::max_rank] = {};
  reader.take(lengths, head.rank * sizeof(std::int64_t), "the table ends inside a shape");
  for (std::size_t i = 0; i < head.rank; ++i) {
    if (lengths[i] < 0) refuse(at, "a length is negative", {}, std::to_string(lengths[i]));
  }
  entry.name = reader.take_text(head.name_bytes, "the table ends inside a name");
  entry.dtype = static_cast<Dtype>(head.dtype);
  entry.shape = Shape(std::span<std::int64_t const>(lengths, head.rank));
  entry.offset = head.offset;
  entry.nbytes = head.nbytes;
  entry.slot = head.slot;
  entry.generation = head.generation;
  entry.present = (head.flags & flag_present) != 0;
  if (entry.present) check_range(head, entry, at, payload_bytes);
}

}  // namespace

std::size_t encoded_size(TableInput const& input) {
  if (input.config.size() > max_config_bytes) {
    throw UsageError({.operation = "tensor table",
                      .message = "the config is too large",
                      .expected = "at most " + std::to_string(max_config_bytes) + " bytes",
                      .got = std::to_string(input.config.size()),
                      .hint = "move long lists of numbers from the config to tensors"});
  }
  auto bytes = sizeof(TableHead) + padded(input.config.size());
  for (auto const& entry : input.entries) {
    if (entry.name.size() > max_name_bytes) {
      throw UsageError({.operation = "tensor table",
                        .message = "a tensor's name is too long",
                        .expected = "at most " + std::to_string(max_name_bytes) + " bytes",
                        .got = std::to_string(entry.name.size()),
                        .resource = std::string(entry.name.substr(0, 80)),
                        .hint = "shorten the name"});
    }
    bytes += sizeof(EntryHead) + entry.shape.size() * sizeof(std::int64_t) + padded(entry.name.size());
  }
  return bytes;
}

void encode(TableInput const& input, std::span<std::byte> out) {
  auto const bytes = encoded_size(input);
  if (out.size() != bytes) {
    throw UsageError({.operation = "tensor table",
                      .message = "the buffer does not have the size of the table",
                      .expected = std::to_string(bytes),
                      .got = std::to_string(out.size())});
  }
  TableWriter writer(out);
  TableHead const head{table_magic, static_cast<std::uint32_t>(input.entries.size()), bytes, input.config.size()};
  writer.put(&head, sizeof(head));
  writer.put_text(input.config);
  for (auto const& entry : input.entries) {
    EntryHead const fixed{entry.offset,
                          entry.nbytes,
                          entry.generation,
                          entry.slot,
                          static_cast<std::uint32_t>(entry.name.size()),
                          static_cast<std::uint8_t>(entry.dtype),
                          static_cast<std::uint8_t>(entry.shape.size()),
                          entry.present ? flag_present : std::uint8_t{0},
                          {}};
    writer.put(&fixed, sizeof(fixed));
    writer.put(entry.shape.data(), entry.shape.size() * sizeof(std::int64_t));
    writer.put_text(entry.name);
  }
}

TableView decode(std::span<std::byte const> bytes, std::uint64_t payload_bytes) {
  TableReader reader(bytes);
  TableHead head{};
  reader.take(&head, sizeof(head), "the table is shorter than its header");
  if (head.magic != table_magic) refuse(0, "not a tensor table of this version");
  if (head.total_bytes != bytes.size()) {
    refuse(8, "the table does not have the length that it states", std::to_string(head.total_bytes),
           std::to_string(bytes.size()));
  }
  if (head.config_bytes > max_config_bytes)
    refuse(16, "the config is too large", {}, std::to_string(head.config_bytes));
  TableView view;
  view.config = reader.take_text(head.config_bytes, "the table ends inside the config");
  if (head.entries > reader.left() / sizeof(EntryHead)) {
    refuse(4, "more entries are announced than the remaining bytes can hold", {}, std::to_string(head.entries));
  }
  view.entries.resize(head.entries);
  for (auto& entry : view.entries) take_entry(reader, payload_bytes, entry);
  if (reader.left() != 0) refuse(reader.at(), "bytes follow the last entry");
  return view;
}

}  // namespace crossrank::codec
