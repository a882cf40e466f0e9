#include "lib/codec/torch/zip/zip_writer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/torch/zip/zip_layout.hpp"

namespace crossrank::codec {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

std::uint64_t zip_file_bytes(std::vector<ZipEntry> const& entries) { return ZipLayout(entries).file_bytes(); }

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
  put(zip_local_header(position_, entry));
}

void ZipWriter::end_record() { put(zip_descriptor(entries_[written_.size() - 1], written_.back().crc)); }

/// Ends the current record if it is complete, and begins the next one that is not empty.
void ZipWriter::skip_finished() {
  while (left_ == 0 && !written_.empty()) {
    end_record();
    if (written_.size() == entries_.size()) {
      left_ = ~std::uint64_t{0};  // no more records
      return;
    }
    begin_record();
  }
}

void ZipWriter::write(std::span<std::byte const> bytes) {
  while (!bytes.empty()) {
    if (left_ == 0 || left_ == ~std::uint64_t{0})
      throw UsageError({.operation = "archive write", .message = "more bytes than the records have"});
    auto const part = bytes.first(std::min<std::uint64_t>({bytes.size(), left_, buffer_bytes}));
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
    put(zip_central_header(entries_[i], written_[i].header, written_[i].crc));
  put(zip_end_records(entries_.size(), position_ - begin, begin));
  flush();
}

}  // namespace crossrank::codec
