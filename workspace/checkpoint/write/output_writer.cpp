#include "workspace/checkpoint/write/output_writer.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/config_tag.hpp"
#include "lib/codec/checksum/crc32.hpp"
#include "lib/platform/crash_point.hpp"
#include "workspace/checkpoint/write/job/job_files.hpp"
#include "workspace/checkpoint/write/written_result.hpp"
#include "workspace/checkpoint/source/operation_names.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr auto poll_interval = std::chrono::milliseconds(50);

Json as_json(OutputText const& seal) {
  return {seal.begin, codec::to_base64(std::vector<std::uint8_t>(seal.text.begin(), seal.text.end()))};
}

OutputText seal_from_json(Json const& json) {
  auto const bytes = codec::from_base64(json.at(1).get_ref<std::string const&>()).value_or(std::vector<std::uint8_t>());
  return {json.at(0).get<std::uint64_t>(), {bytes.begin(), bytes.end()}};
}

/// The part of a text that is inside a slice, and its place in the slice.
struct TextPart {
  std::size_t at = 0;
  std::span<std::byte const> bytes{};
};

/// Calls `take` with each part of `texts` in the slice `[begin, begin + size)`.
template <class Take>
void for_texts(std::span<OutputText const> texts, std::uint64_t begin, std::size_t size, Take const& take) {
  auto const end = begin + size;
  auto text = std::partition_point(texts.begin(), texts.end(),
                                   [&](auto const& one) { return one.begin + one.text.size() <= begin; });
  for (; text != texts.end() && text->begin < end; ++text) {
    auto const first = std::max(begin, text->begin);
    auto const last = std::min<std::uint64_t>(end, text->begin + text->text.size());
    if (first >= last) continue;
    take(TextPart{first - begin, std::as_bytes(std::span(text->text)).subspan(first - text->begin, last - first)});
  }
}

}  // namespace

struct OutputWriter::File {
  OutputFile const* layout = nullptr;
  std::optional<TemporaryFile> temporary{};
  std::once_flag opened{};
  std::exception_ptr refusal{};          ///< why the file could not be opened
  std::vector<std::uint64_t> digests{};  ///< checksums of the slices without seals, set by the threads that write them
  std::vector<std::vector<std::uint32_t>> crcs{};  ///< CRCs of the tensor parts in each slice, if `takes_crcs`
  std::vector<OutputText> seals{};                 ///< texts of the seal; the digests count zeros in their places
  std::size_t left = 0;  ///< unfinished slices of the current pass; guarded by the writer's mutex
  bool resumed = false;

  /// Restores the state of a finished file from its marker.
  void take_up(Json const& facts) {
    resumed = true;
    try {
      auto const& hashes = facts.at("digests");
      for (std::size_t i = 0; i < digests.size(); ++i)
        digests[i] = codec::from_hex(hashes.at(i).get_ref<std::string const&>()).value_or(0);
      for (auto const& seal : facts.at("seals")) seals.push_back(seal_from_json(seal));
    } catch (Json::exception const& e) {
      throw unreadable_record(finished_marker_name(layout->name), e.what(), restart_hint);
    }
  }
  [[nodiscard]] std::uint64_t slice_begin(std::size_t slice) const { return slice * slice_bytes; }
  [[nodiscard]] std::size_t slice_size(std::size_t slice) const {
    return std::min(slice_bytes, layout->bytes - slice_begin(slice));
  }
};

OutputWriter::File& OutputWriter::add_file(OutputFile const& layout) {
  files_.push_back(std::make_unique<File>());
  auto& file = *files_.back();
  file.layout = &layout;
  file.digests.resize((layout.bytes + slice_bytes - 1) / slice_bytes);
  if (layout.takes_crcs) file.crcs.resize(file.digests.size());
  bytes_total_ += layout.bytes;
  ++open_files_;
  return file;
}

OutputWriter::OutputWriter(std::span<OutputFile const> files, int rank, WorkFolder const& folder, Options options)
    : folder_(&folder), options_(options) {
  for (auto const& layout : files) {
    if (layout.owner != rank) continue;
    auto& file = add_file(layout);
    auto const facts = options.resume ? folder.finished(layout.name) : std::nullopt;
    if (facts) {
      ++resumed_files_;
      file.take_up(*facts);
      file.temporary.emplace(TemporaryFile::reopen(folder.directory(), layout.name, layout.bytes));
    }
    add_slices(file, file.resumed);
  }
}

OutputWriter::OutputWriter(std::span<OutputFile const> files, int rank, platform::Directory written)
    : written_(std::move(written)) {
  for (auto const& layout : files) {
    if (layout.owner == rank) add_slices(add_file(layout), false);
  }
}

OutputWriter::~OutputWriter() = default;

void OutputWriter::add_slices(File& file, bool verify) {
  file.left = file.digests.size();
  for (std::size_t i = file.digests.size(); verify && i > 0; --i) units_.push_front({&file, i - 1, true});
  for (std::size_t i = 0; !verify && i < file.digests.size(); ++i) units_.push_back({&file, i, false});
}

bool OutputWriter::take_unit(Unit& unit) {
  std::unique_lock lock(mutex_);
  // When the last slices of a file are written, its slices to verify become available.
  if (units_.empty() && open_files_ > 0)
    changed_.wait_for(lock, poll_interval, [this] { return !units_.empty() || open_files_ == 0; });
  if (units_.empty()) {
    unit.file = nullptr;
    return open_files_ > 0;
  }
  unit = units_.front();
  units_.pop_front();
  return true;
}

bool OutputWriter::step() {
  Unit unit;
  if (!take_unit(unit)) return false;
  if (unit.file == nullptr) return true;
  auto buffer = take_buffer();
  std::span<std::byte> const bytes(buffer.get(), unit.file->slice_size(unit.slice));
  if (unit.verify) {
    verify_slice(*unit.file, unit.slice, bytes);
  } else {
    write_slice(*unit.file, unit.slice, bytes);
  }
  give_buffer(std::move(buffer));
  end_unit(unit);
  return true;
}

void OutputWriter::open_file(File& file) {
  auto const& layout = *file.layout;
  if (compares()) {
    file.temporary.emplace(TemporaryFile::reopen(written_, layout.name, layout.bytes));
    return;
  }
  // A seal without CRCs reads the whole file again.
  auto const caching = layout.seal && !layout.takes_crcs ? Caching::page_cache : Caching::none;
  file.temporary.emplace(folder_->directory(), folder_->working_name(layout.name), layout.bytes, caching);
}

void OutputWriter::write_slice(File& file, std::size_t slice, std::span<std::byte> buffer) {
  auto const& layout = *file.layout;
  std::call_once(file.opened, [&]() noexcept {
    try {
      open_file(file);
    } catch (...) {
      file.refusal = std::current_exception();
    }
  });
  if (file.refusal) std::rethrow_exception(file.refusal);
  auto const begin = file.slice_begin(slice);
  auto const end = begin + buffer.size();
  // Padding and the places of the seal are zeros.
  if (layout.seal) std::memset(buffer.data(), 0, buffer.size());
  for_texts(layout.texts, begin, buffer.size(),
            [&](TextPart const& part) { std::memcpy(buffer.data() + part.at, part.bytes.data(), part.bytes.size()); });
  auto at = std::partition_point(layout.tensors.begin(), layout.tensors.end(),
                                 [&](auto const& tensor) { return tensor.begin + tensor.bytes <= begin; });
  for (; at != layout.tensors.end() && at->begin < end; ++at) {
    auto const first = std::max(begin, at->begin);
    auto const last = std::min(end, at->begin + at->bytes);
    if (first >= last) continue;
    auto const part = buffer.subspan(first - begin, last - first);
    layout.source->read(at->tensor, first - at->begin, part);
    if (layout.takes_crcs) file.crcs[slice].push_back(codec::crc32(0, part));
  }
  file.digests[slice] = codec::checksum(buffer);
  if (!compares()) {
    file.temporary->write_at(begin, buffer);
    CROSSRANK_CRASH_POINT("checkpoint.slice.written");
  }
  bytes_done_.fetch_add(buffer.size(), std::memory_order_relaxed);
}

void OutputWriter::verify_slice(File& file, std::size_t slice, std::span<std::byte> buffer) {
  file.temporary->read_at(file.slice_begin(slice), buffer);
  bool sealed = true;
  for_texts(file.seals, file.slice_begin(slice), buffer.size(), [&](TextPart const& part) {
    sealed = sealed && std::memcmp(buffer.data() + part.at, part.bytes.data(), part.bytes.size()) == 0;
    std::memset(buffer.data() + part.at, 0, part.bytes.size());
  });
  auto const digest = codec::checksum(buffer);
  if (file.resumed) bytes_done_.fetch_add(buffer.size(), std::memory_order_relaxed);
  if (sealed && digest == file.digests[slice]) return;
  if (compares()) throw output_differs(written_.path(), file.layout->name);
  throw IoError({.operation = write_operation,
                 .message = "the file system returned different bytes than were written",
                 .expected = codec::to_hex(file.digests[slice]),
                 .got = codec::to_hex(digest) + " for " + std::to_string(buffer.size()) + " bytes from " +
                        std::to_string(file.slice_begin(slice)),
                 .resource = folder_->directory().path_of(file.layout->name),
                 .hint = file.resumed ? "run again without `resume`" : "check the disk and write again"});
}

void OutputWriter::end_unit(Unit const& unit) {
  bool last = false;
  {
    std::lock_guard const lock(mutex_);
    last = --unit.file->left == 0;
  }
  if (!last) return;
  if (unit.verify) {
    end_file(*unit.file);
  } else {
    end_writing(*unit.file);
  }
}

/// Combines the CRCs of tensor parts into CRCs of whole tensors.
std::vector<std::uint32_t> OutputWriter::tensor_crcs(File const& file) {
  std::vector<std::uint32_t> whole;
  if (file.crcs.empty()) return whole;
  std::vector<std::size_t> used(file.crcs.size(), 0);
  for (auto const& tensor : file.layout->tensors) {
    std::uint32_t crc = 0;
    auto const end = tensor.begin + tensor.bytes;
    for (auto at = tensor.begin; at < end;) {
      auto const slice = at / slice_bytes;
      auto const next = std::min(end, file.slice_begin(slice + 1));
      crc = codec::crc32_combine(crc, file.crcs[slice][used[slice]++], next - at);
      at = next;
    }
    whole.push_back(crc);
  }
  return whole;
}

/// Writes the texts that depend on the data.
void OutputWriter::seal(File& file) {
  auto& temporary = *file.temporary;
  auto const crcs = tensor_crcs(file);
  file.seals = file.layout->seal(
      {.read = [&](std::uint64_t offset, std::span<std::byte> out) { temporary.read_at(offset, out); }, .crcs = crcs});
  if (compares()) return;
  for (auto const& text : file.seals) temporary.write_at(text.begin, std::as_bytes(std::span(text.text)));
  CROSSRANK_CRASH_POINT("checkpoint.file.sealed");
}

void OutputWriter::end_writing(File& file) {
  if (file.layout->seal) seal(file);
  if (!compares()) {
    file.temporary->sync();
    if (options_.read_back == ReadBack::none) return end_file(file);
  }
  std::lock_guard const lock(mutex_);
  add_slices(file, true);
  changed_.notify_all();
}

void OutputWriter::end_file(File& file) {
  file.temporary->close();
  if (!file.resumed && !compares()) {
    Json digests = Json::array();
    for (auto const digest : file.digests) digests.push_back(codec::to_hex(digest));
    Json seals = Json::array();
    for (auto const& text : file.seals) seals.push_back(as_json(text));
    if (options_.before_record) options_.before_record(*file.layout);
    folder_->mark_finished(
        file.layout->name,
        {{"bytes", file.layout->bytes}, {"digests", std::move(digests)}, {"seals", std::move(seals)}});
  }
  std::lock_guard const lock(mutex_);
  --open_files_;
  changed_.notify_all();
}

OutputWriter::Buffer OutputWriter::take_buffer() {
  {
    std::lock_guard const lock(mutex_);
    if (!buffers_.empty()) {
      auto buffer = std::move(buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  return platform::make_direct_buffer(slice_bytes);
}

void OutputWriter::give_buffer(Buffer buffer) {
  std::lock_guard const lock(mutex_);
  buffers_.push_back(std::move(buffer));
}

}  // namespace crossrank::checkpoint
