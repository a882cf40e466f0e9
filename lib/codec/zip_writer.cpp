#include "lib/codec/zip_writer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/crc32.hpp"
#include "lib/codec/zip_format.hpp"

namespace crossrank::codec {
namespace {

constexpr std::uint64_t alignment = 64;
constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
constexpr std::uint16_t flags = zip::flag_descriptor | zip::flag_utf8;
constexpr std::uint16_t version_needed = 45;  // of the format: the first with ZIP64
constexpr std::size_t wide_field_bytes = 20;
// "FB", as torch calls the field that pads.
constexpr std::uint16_t padding_id = 0x4246;

template <class Number>
void append(std::string& out, Number value) {
  out.append(reinterpret_cast<char const*>(&value), sizeof(value));
}

bool is_wide(std::uint64_t value) noexcept { return value >= zip::in_zip64_32; }

std::uint32_t narrow(std::uint64_t value) noexcept {
  return is_wide(value) ? zip::in_zip64_32 : static_cast<std::uint32_t>(value);
}

/// Bytes of the field that moves the data behind it to a multiple of the alignment.
std::size_t padding_bytes(std::uint64_t header_at, ZipEntry const& entry) {
  auto const field = is_wide(entry.size) ? wide_field_bytes : std::size_t{0};
  auto const plain = header_at + zip::local_bytes + entry.name.size() + field + 4;
  return static_cast<std::size_t>((alignment - plain % alignment) % alignment);
}

std::string local_header(std::uint64_t header_at, ZipEntry const& entry) {
  std::string out;
  auto const padding = padding_bytes(header_at, entry);
  auto const wide = is_wide(entry.size);
  append(out, zip::local_magic);
  append(out, version_needed);
  append(out, flags);
  out.append(2 + 4 + 4 + 8, '\0');  // stored, no time; CRC and sizes follow the data
  append(out, static_cast<std::uint16_t>(entry.name.size()));
  append(out, static_cast<std::uint16_t>((wide ? wide_field_bytes : 0) + 4 + padding));
  out += entry.name;
  if (wide) {
    append(out, zip::zip64_extra_id);
    append(out, std::uint16_t{16});
    out.append(16, '\0');
  }
  append(out, padding_id);
  append(out, static_cast<std::uint16_t>(padding));
  out.append(padding, 'Z');
  return out;
}

std::string descriptor(ZipEntry const& entry, std::uint32_t crc) {
  std::string out;
  append(out, zip::descriptor_magic);
  append(out, crc);
  for (int i = 0; i < 2; ++i) {
    if (is_wide(entry.size)) {
      append(out, entry.size);
    } else {
      append(out, static_cast<std::uint32_t>(entry.size));
    }
  }
  return out;
}

std::string central_header(ZipEntry const& entry, std::uint64_t header_at, std::uint32_t crc) {
  std::string extra;
  if (is_wide(entry.size)) {
    append(extra, entry.size);
    append(extra, entry.size);
  }
  if (is_wide(header_at)) append(extra, header_at);
  std::string out;
  append(out, zip::central_magic);
  append(out, version_needed);
  append(out, version_needed);
  append(out, flags);
  out.append(2 + 4, '\0');
  append(out, crc);
  append(out, narrow(entry.size));
  append(out, narrow(entry.size));
  append(out, static_cast<std::uint16_t>(entry.name.size()));
  append(out, static_cast<std::uint16_t>(extra.empty() ? 0 : extra.size() + 4));
  out.append(2 + 2 + 2 + 4, '\0');
  append(out, narrow(header_at));
  out += entry.name;
  if (!extra.empty()) {
    append(out, zip::zip64_extra_id);
    append(out, static_cast<std::uint16_t>(extra.size()));
    out += extra;
  }
  return out;
}

/// Both end records; the wide one always, as torch does.
std::string end_records(std::uint64_t count, std::uint64_t bytes, std::uint64_t begin) {
  std::string out;
  append(out, zip::end64_magic);
  append(out, std::uint64_t{zip::end64_bytes - 12});
  append(out, version_needed);
  append(out, version_needed);
  out.append(8, '\0');
  append(out, count);
  append(out, count);
  append(out, bytes);
  append(out, begin);
  append(out, zip::locator_magic);
  append(out, std::uint32_t{0});
  append(out, begin + bytes);
  append(out, std::uint32_t{1});
  append(out, zip::end_magic);
  out.append(4, '\0');
  auto const short_count = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, zip::in_zip64_16));
  append(out, short_count);
  append(out, short_count);
  append(out, narrow(bytes));
  append(out, narrow(begin));
  append(out, std::uint16_t{0});
  return out;
}

}  // namespace

std::uint64_t zip_file_bytes(std::vector<ZipEntry> const& entries) {
  std::uint64_t position = 0;
  std::uint64_t directory = 0;
  for (auto const& entry : entries) {
    directory += central_header(entry, position, 0).size();
    position += local_header(position, entry).size() + entry.size + descriptor(entry, 0).size();
  }
  return position + directory + end_records(0, 0, 0).size();
}

ZipWriter::ZipWriter(std::vector<ZipEntry> entries, ByteSink& sink) : entries_(std::move(entries)), sink_(sink) {
  written_.reserve(entries_.size());
  begin_record();
  skip_finished();
}

void ZipWriter::put(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > buffer_bytes) flush();
  if (bytes.size() >= buffer_bytes) {
    sink_.write_at(position_, std::as_bytes(std::span(bytes)));
  } else {
    buffer_ += bytes;
  }
  position_ += bytes.size();
}

void ZipWriter::flush() {
  if (!buffer_.empty()) sink_.write_at(position_ - buffer_.size(), std::as_bytes(std::span(buffer_)));
  buffer_.clear();
}

void ZipWriter::begin_record() {
  if (written_.size() == entries_.size()) return;
  auto const& entry = entries_[written_.size()];
  written_.push_back({.header = position_});
  left_ = entry.size;
  put(local_header(position_, entry));
}

void ZipWriter::end_record() { put(descriptor(entries_[written_.size() - 1], written_.back().crc)); }

/// Ends the record at hand if it is complete, and begins the next ones that are not empty.
void ZipWriter::skip_finished() {
  while (left_ == 0 && !written_.empty()) {
    end_record();
    if (written_.size() == entries_.size()) {
      left_ = ~std::uint64_t{0};  // no record takes more
      return;
    }
    begin_record();
  }
}

void ZipWriter::write(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    if (left_ == 0 || left_ == ~std::uint64_t{0})
      throw UsageError({.operation = "archive write", .message = "there are more bytes than the records were to have"});
    auto const part =
        bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>({bytes.size(), left_, buffer_bytes})));
    written_.back().crc = crc32(written_.back().crc, part);
    put({reinterpret_cast<char const*>(part.data()), part.size()});
    left_ -= part.size();
    bytes = bytes.subspan(part.size());
    skip_finished();
  }
}

void ZipWriter::finish() {
  if (!entries_.empty() && left_ != ~std::uint64_t{0})
    throw UsageError({.operation = "archive write", .message = "bytes of the records are missing"});
  auto const begin = position_;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    put(central_header(entries_[i], written_[i].header, written_[i].crc));
  put(end_records(entries_.size(), position_ - begin, begin));
  flush();
}

}  // namespace crossrank::codec
