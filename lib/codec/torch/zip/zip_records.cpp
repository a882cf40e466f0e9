#include "lib/codec/torch/zip/zip_records.hpp"

#include <algorithm>

#include "lib/codec/io/append_value.hpp"
#include "lib/codec/torch/zip/zip_format.hpp"

namespace crossrank::codec {
namespace {

constexpr std::uint64_t alignment = 64;
constexpr std::uint16_t flags = zip::flag_descriptor | zip::flag_utf8;
constexpr std::uint16_t version_needed = 45;  // first version of the format with ZIP64
constexpr std::size_t wide_field_bytes = 20;
// "FB", torch's padding field.
constexpr std::uint16_t padding_id = 0x4246;

bool is_wide(std::uint64_t value) noexcept { return value >= zip::in_zip64_32; }

std::uint32_t narrow(std::uint64_t value) noexcept {
  return is_wide(value) ? zip::in_zip64_32 : static_cast<std::uint32_t>(value);
}

/// Returns the size of the field that moves the data to a multiple of the alignment.
std::size_t padding_bytes(std::uint64_t header_at, ZipEntry const& entry) {
  auto const field = is_wide(entry.size) ? wide_field_bytes : std::size_t{0};
  auto const plain = header_at + zip::local_bytes + entry.name.size() + field + 4;
  return (alignment - plain % alignment) % alignment;
}

}  // namespace

std::string zip_local_header(std::uint64_t header_at, ZipEntry const& entry) {
  std::string out;
  auto const padding = padding_bytes(header_at, entry);
  auto const wide = is_wide(entry.size);
  append_value(out, zip::local_magic);
  append_value(out, version_needed);
  append_value(out, flags);
  out.append(2 + 4 + 4 + 8, '\0');  // stored, no time; CRC and sizes follow the data
  append_value(out, static_cast<std::uint16_t>(entry.name.size()));
  append_value(out, static_cast<std::uint16_t>((wide ? wide_field_bytes : 0) + 4 + padding));
  out += entry.name;
  if (wide) {
    append_value(out, zip::zip64_extra_id);
    append_value(out, std::uint16_t{16});
    out.append(16, '\0');
  }
  append_value(out, padding_id);
  append_value(out, static_cast<std::uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string zip_descriptor(ZipEntry const& entry, std::uint32_t crc) {
  std::string out;
  append_value(out, zip::descriptor_magic);
  append_value(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (is_wide(entry.size)) {
      append_value(out, entry.size);
    } else {
      append_value(out, static_cast<std::uint32_t>(entry.size));
    }
  }
  return out;
}

std::string zip_central_header(ZipEntry const& entry, std::uint64_t header_at, std::uint32_t crc) {
  std::string extra;
  if (is_wide(entry.size)) {
    append_value(extra, entry.size);
    append_value(extra, entry.size);
  }
  if (is_wide(header_at)) append_value(extra, header_at);
  std::string out;
  append_value(out, zip::central_magic);
  append_value(out, version_needed);
  append_value(out, version_needed);
  append_value(out, flags);
  out.append(2 + 4, '\0');
  append_value(out, crc);
  append_value(out, narrow(entry.size));
  append_value(out, narrow(entry.size));
  append_value(out, static_cast<std::uint16_t>(entry.name.size()));
  append_value(out, static_cast<std::uint16_t>(extra.empty() ? 0 : extra.size() + 4));
  out.append(2 + 2 + 2 + 4, '\0');
  append_value(out, narrow(header_at));
  out += entry.name;
  if (!extra.empty()) {
    append_value(out, zip::zip64_extra_id);
    append_value(out, static_cast<std::uint16_t>(extra.size()));
    out += extra;
  }
  return out;
}

std::string zip_end_records(std::uint64_t count, std::uint64_t bytes, std::uint64_t begin) {
  std::string out;
  append_value(out, zip::end64_magic);
  append_value(out, std::uint64_t{zip::end64_bytes - 12});
  append_value(out, version_needed);
  append_value(out, version_needed);
  out.append(8, '\0');
  append_value(out, count);
  append_value(out, count);
  append_value(out, bytes);
  append_value(out, begin);
  append_value(out, zip::locator_magic);
  append_value(out, std::uint32_t{0});
  append_value(out, begin + bytes);
  append_value(out, std::uint32_t{1});
  append_value(out, zip::end_magic);
  out.append(4, '\0');
  auto const short_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, zip::in_zip64_16));
  append_value(out, short_count);
  append_value(out, short_count);
  append_value(out, narrow(bytes));
  append_value(out, narrow(begin));
  append_value(out, std::uint16_t{0});
  return out;
}

}  // namespace crossrank::codec
