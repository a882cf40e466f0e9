#include "lib/codec/torch/zip/zip_reader.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/codec/torch/zip/zip_format.hpp"

namespace crossrank::codec {
namespace {

constexpr char const* directory_section = "zip directory";
constexpr char const* record_section = "zip record";
constexpr std::size_t crc_block_bytes = std::size_t{1} << 20;

[[noreturn]] void refuse(ByteSource const& source, char const* section, std::uint64_t offset, std::string message,
                         std::string_view record = {}, std::string hint = {}) {
  if (!record.empty()) message += " (record \"" + printable(record.substr(0, 200)) + "\")";
  throw FormatError({.operation = "archive read",
                     .message = std::move(message),
                     .resource = source.name(),
                     .hint = std::move(hint),
                     .section = section,
                     .offset = offset});
}

/// Position and size of the directory.
struct Directory {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;
  std::uint64_t limit = 0;  ///< end of the range in which the directory may lie
};

std::uint64_t find_end(ByteSource const& source, std::vector<std::byte> const& tail, std::uint64_t tail_at) {
  if (tail.size() >= zip::end_bytes) {
    for (auto at = tail.size() - zip::end_bytes + 1; at-- > 0;) {
      if (zip::load<std::uint32_t>(&tail[at]) != zip::end_magic) continue;
      if (at + zip::end_bytes + zip::load<std::uint16_t>(&tail[at + 20]) == tail.size()) return tail_at + at;
    }
  }
  refuse(source, directory_section, source.size(), "not a zip archive, or its end is missing", {},
         "the file may have been truncated while it was copied or written: copy it again");
}

template <std::size_t Bytes>
std::array<std::byte, Bytes> read_array(ByteSource const& source, std::uint64_t at) {
  std::array<std::byte, Bytes> bytes{};
  source.read_at(at, bytes);
  return bytes;
}

/// Takes a ZIP64 value. An ordinary value that is not the marker must agree with it.
void take_zip64(ByteSource const& source, std::uint64_t end_at, std::uint64_t& value, std::uint64_t wide,
                std::uint64_t placeholder) {
  if (value != placeholder && value != wide)
    refuse(source, directory_section, end_at, "the two end records of the archive disagree");
  value = wide;
}

/// Reads the ZIP64 end record if a locator precedes the end record.
void take_end64(ByteSource const& source, std::uint64_t end_at, Directory& directory) {
  if (end_at < zip::locator_bytes) return;
  auto const locator_at = end_at - zip::locator_bytes;
  auto const locator = read_array<zip::locator_bytes>(source, locator_at);
  if (zip::load<std::uint32_t>(locator.data()) != zip::locator_magic) return;
  auto const at = zip::load<std::uint64_t>(locator.data() + 8);
  if (zip::load<std::uint32_t>(locator.data() + 4) != 0 || zip::load<std::uint32_t>(locator.data() + 16) > 1)
    refuse(source, directory_section, locator_at, "the archive spans several volumes");
  if (at > locator_at || locator_at - at < zip::end64_bytes)
    refuse(source, directory_section, locator_at, "the ZIP64 end record is not where the archive says");
  auto const end = read_array<zip::end64_bytes>(source, at);
  if (zip::load<std::uint32_t>(end.data()) != zip::end64_magic)
    refuse(source, directory_section, at, "the ZIP64 end record is not where the archive says");
  if (zip::load<std::uint64_t>(end.data() + 24) != zip::load<std::uint64_t>(end.data() + 32))
    refuse(source, directory_section, at, "the archive spans several volumes");
  take_zip64(source, end_at, directory.records, zip::load<std::uint64_t>(end.data() + 32), zip::in_zip64_16);
  take_zip64(source, end_at, directory.bytes, zip::load<std::uint64_t>(end.data() + 40), zip::in_zip64_32);
  take_zip64(source, end_at, directory.begin, zip::load<std::uint64_t>(end.data() + 48), zip::in_zip64_32);
  directory.limit = at;
}

Directory find_directory(ByteSource const& source) {
  auto const tail_bytes = std::min<std::uint64_t>(source.size(), zip::end_bytes + zip::max_comment_bytes);
  std::vector<std::byte> tail(tail_bytes);
  source.read_at(source.size() - tail_bytes, tail);
  auto const end_at = find_end(source, tail, source.size() - tail_bytes);
  auto const* const end = &tail[end_at - (source.size() - tail_bytes)];
  if (zip::load<std::uint16_t>(end + 4) != 0 || zip::load<std::uint16_t>(end + 6) != 0 ||
      zip::load<std::uint16_t>(end + 8) != zip::load<std::uint16_t>(end + 10))
    refuse(source, directory_section, end_at, "the archive spans several volumes");
  Directory directory{zip::load<std::uint16_t>(end + 10), zip::load<std::uint32_t>(end + 12),
                      zip::load<std::uint32_t>(end + 16), end_at};
  take_end64(source, end_at, directory);
  if (directory.begin > directory.limit || directory.bytes != directory.limit - directory.begin)
    refuse(source, directory_section, end_at, "the directory is not where the archive says");
  if (directory.records > max_tensors || directory.records * zip::central_bytes > directory.bytes)
    refuse(source, directory_section, end_at, "the directory is too small for its records, or they are too many");
  return directory;
}

/// Values of a record that may be in its ZIP64 extra field.
struct Extent {
  std::uint64_t size = 0;
  std::uint64_t packed = 0;
  std::uint64_t header = 0;
};

/// Replaces marked values by those of the extra field, which has them in this order.
bool take_extra(std::span<std::byte const> extra, Extent& extent) {
  std::uint64_t* wanted[3] = {};
  std::size_t count = 0;
  for (auto* value : {&extent.size, &extent.packed, &extent.header}) {
    if (*value == zip::in_zip64_32) wanted[count++] = value;
  }
  for (; count > 0 && extra.size() >= 4;) {
    auto const id = zip::load<std::uint16_t>(extra.data());
    auto const bytes = zip::load<std::uint16_t>(extra.data() + 2);
    if (bytes > extra.size() - 4) return false;
    if (id == zip::zip64_extra_id) {
      if (bytes < 8 * count) return false;
      for (std::size_t i = 0; i < count; ++i) *wanted[i] = zip::load<std::uint64_t>(extra.data() + 4 + 8 * i);
      return true;
    }
    extra = extra.subspan(4 + std::size_t{bytes});
  }
  // Without the field the marker is an ordinary value: a record may be one byte short of 4 GiB.
  return true;
}

/// Reads one entry of the directory. Sets `begin` to the offset of the record's local header.
std::size_t take_entry(ByteSource const& source, std::span<std::byte const> from, std::uint64_t at, ZipRecord& record) {
  if (from.size() < zip::central_bytes || zip::load<std::uint32_t>(from.data()) != zip::central_magic)
    refuse(source, directory_section, at, "not an entry of a directory");
  auto const name_bytes = zip::load<std::uint16_t>(from.data() + 28);
  auto const extra_bytes = zip::load<std::uint16_t>(from.data() + 30);
  auto const total = zip::central_bytes + name_bytes + extra_bytes + zip::load<std::uint16_t>(from.data() + 32);
  if (total > from.size()) refuse(source, directory_section, at, "an entry goes past the end of the directory");
  record.name.assign(reinterpret_cast<char const*>(from.data()) + zip::central_bytes, name_bytes);
  record.at = at;
  record.crc = zip::load<std::uint32_t>(from.data() + 16);
  if ((zip::load<std::uint16_t>(from.data() + 8) & zip::flag_encrypted) != 0)
    refuse(source, directory_section, at, "the record is encrypted", record.name);
  if (zip::load<std::uint16_t>(from.data() + 10) != 0) {
    refuse(source, directory_section, at, "the record is compressed; torch stores records as they are", record.name,
           "load and save it with torch");
  }
  Extent extent{zip::load<std::uint32_t>(from.data() + 24), zip::load<std::uint32_t>(from.data() + 20),
                zip::load<std::uint32_t>(from.data() + 42)};
  if (!take_extra(from.subspan(zip::central_bytes + name_bytes, extra_bytes), extent))
    refuse(source, directory_section, at, "the extra field is malformed", record.name);
  if (extent.size != extent.packed) refuse(source, directory_section, at, "a stored record has two sizes", record.name);
  record.size = extent.size;
  record.begin = extent.header;
  return total;
}

/// Reads the local header and sets `begin` to the byte after it. The name must equal that in the directory, because
/// other readers may use either of them.
void place(ByteSource const& source, std::uint64_t limit, ZipRecord& record) {
  auto const header_at = record.begin;
  auto const wanted = zip::local_bytes + record.name.size();
  if (header_at > limit || limit - header_at < wanted)
    refuse(source, directory_section, record.at, "the record lies outside the archive", record.name);
  std::vector<std::byte> header(wanted);
  source.read_at(header_at, header);
  auto const* const name = reinterpret_cast<char const*>(header.data()) + zip::local_bytes;
  if (zip::load<std::uint32_t>(header.data()) != zip::local_magic ||
      zip::load<std::uint16_t>(header.data() + 26) != record.name.size() ||
      std::string_view(name, record.name.size()) != record.name)
    refuse(source, record_section, header_at, "the record is not what the directory says", record.name);
  auto const flags = zip::load<std::uint16_t>(header.data() + 6);
  auto const local_size = zip::load<std::uint32_t>(header.data() + 22);
  if (zip::load<std::uint16_t>(header.data() + 8) != 0 || (flags & zip::flag_encrypted) != 0 ||
      ((flags & zip::flag_descriptor) == 0 && local_size != zip::in_zip64_32 && local_size != record.size))
    refuse(source, record_section, header_at, "the record is not what the directory says", record.name);
  record.begin = header_at + wanted + zip::load<std::uint16_t>(header.data() + 28);
  if (record.begin > limit || record.size > limit - record.begin)
    refuse(source, record_section, header_at, "the record lies outside the archive", record.name);
}

}  // namespace

void refuse_crc(ByteSource const& source, ZipRecord const& record) {
  refuse(source, record_section, record.begin, "the bytes do not match their CRC", record.name,
         "copy the file again; if its writer omitted the CRCs, read it with `crc` ignore");
}

ZipArchive ZipArchive::open(std::shared_ptr<ByteSource const> source) {
  ZipArchive archive;
  archive.source_ = std::move(source);
  archive.read_directory();
  archive.place_records();
  archive.index_names();
  return archive;
}

void ZipArchive::read_directory() {
  auto const directory = find_directory(*source_);
  directory_begin_ = directory.begin;
  std::vector<std::byte> bytes(directory.bytes);
  source_->read_at(directory.begin, bytes);
  std::size_t at = 0;
  records_.resize(directory.records);
  for (auto& record : records_) at += take_entry(*source_, std::span(bytes).subspan(at), directory.begin + at, record);
  if (at != bytes.size())
    refuse(*source_, directory_section, directory.begin + at, "the directory has bytes outside its records");
}

void ZipArchive::place_records() {
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint32_t record;
  };
  std::vector<Range> ranges;
  ranges.reserve(records_.size());
  for (auto& record : records_) {
    auto const header_at = record.begin;
    place(*source_, directory_begin_, record);
    ranges.push_back({header_at, record.begin + record.size, static_cast<std::uint32_t>(&record - records_.data())});
  }
  std::sort(ranges.begin(), ranges.end(), [](Range const& a, Range const& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end)
      refuse(*source_, record_section, ranges[i].begin, "two records overlap", records_[ranges[i].record].name);
  }
}

void ZipArchive::index_names() {
  by_name_.resize(records_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](std::uint32_t a, std::uint32_t b) { return records_[a].name < records_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    auto const& record = records_[by_name_[i]];
    if (record.name == records_[by_name_[i - 1]].name)
      refuse(*source_, directory_section, record.at, "two records have the same name", record.name);
  }
}

ZipRecord const* ZipArchive::find(std::string_view name) const noexcept {
  auto const found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](std::uint32_t record, std::string_view wanted) { return records_[record].name < wanted; });
  return found != by_name_.end() && records_[*found].name == name ? &records_[*found] : nullptr;
}

std::vector<std::byte> ZipArchive::read_small(ZipRecord const& record, std::uint64_t max) const {
  if (record.size > max) {
    refuse(*source_, record_section, record.begin,
           "the record has " + std::to_string(record.size) + " bytes; the limit is " + std::to_string(max),
           record.name);
  }
  std::vector<std::byte> bytes(record.size);
  source_->read_at(record.begin, bytes);
  return bytes;
}

bool ZipArchive::crc_holds(ZipRecord const& record) const {
  std::vector<std::byte> block(std::min<std::uint64_t>(record.size, crc_block_bytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < record.size;) {
    auto const part = std::span(block).first(std::min<std::uint64_t>(block.size(), record.size - done));
    source_->read_at(record.begin + done, part);
    crc = crc32(crc, part);
    done += part.size();
  }
  return crc == record.crc;
}

}  // namespace crossrank::codec
