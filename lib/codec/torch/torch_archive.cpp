#include "lib/codec/torch/torch_archive.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/crc32.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/torch/pickle/torch_dtype.hpp"
#include "lib/codec/torch/torch_tensor.hpp"
#include "lib/core/log.hpp"

namespace crossrank::codec {
namespace {

constexpr std::size_t archive_block_bytes = std::size_t{1} << 20;
constexpr int newest_version = 10;

[[noreturn]] void refuse_file(ByteSource const& source, std::string section, std::string message, std::string hint) {
  throw FormatError({.operation = "torch archive read",
                     .message = std::move(message),
                     .resource = source.name(),
                     .hint = std::move(hint),
                     .section = std::move(section)});
}

/// Distinguishes the formats of torch before version 1.6 from damage.
void refuse_old_formats(ByteSource const& source) {
  // The pickle of a number, after the mark of the protocol and, from protocol 4 on, the length of a frame.
  constexpr std::string_view magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  std::array<char, 263> bytes{};
  auto const count = std::min<std::uint64_t>(bytes.size(), source.size());
  source.read_at(0, std::as_writable_bytes(std::span(bytes)).first(count));
  std::string_view const head(bytes.data(), bytes.size());
  char const* const hint = "load and save it with PyTorch 1.6 or later: torch.save(torch.load(path), path)";
  if (head[0] == '\x80' && (head.substr(2).starts_with(magic) || head.substr(11).starts_with(magic)))
    refuse_file(source, "file", "this is the format of torch before 1.6, which is not a zip archive", hint);
  if (head.substr(257).starts_with("ustar"))
    refuse_file(source, "file", "this is a tar archive, the oldest format of torch", hint);
}

ZipArchive open_zip(std::shared_ptr<ByteSource const> source) {
  refuse_old_formats(*source);
  return ZipArchive::open(std::move(source));
}

std::string_view as_text(std::vector<std::byte> const& bytes) noexcept {
  return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

}  // namespace

std::shared_ptr<TorchArchive const> TorchArchive::open(std::shared_ptr<ByteSource const> source,
                                                       TorchReadOptions options) {
  std::shared_ptr<TorchArchive> archive(new TorchArchive(std::move(source), std::move(options)));
  archive->check_kind();
  archive->read_values();
  return archive;
}

TorchArchive::TorchArchive(std::shared_ptr<ByteSource const> source, TorchReadOptions options)
    : zip_(open_zip(std::move(source))), options_(std::move(options)) {
  auto const records = zip_.records();
  auto const first = records.empty() ? std::string_view{} : std::string_view(records.front().name);
  auto const slash = first.find('/');
  if (slash == std::string_view::npos)
    refuse_file(zip_.source(), "zip directory", "this is a zip archive, but not one of torch", "");
  prefix_ = first.substr(0, slash + 1);
  for (auto const& record : records) {
    if (!record.name.starts_with(prefix_))
      refuse_file(zip_.source(), "zip directory",
                  "the record \"" + printable(record.name.substr(0, 200)) + "\" is not in the archive's folder", "");
  }
}

void TorchArchive::refuse(PickleValue value, std::string message, std::string hint) const {
  refuse_pickle(pickle_, value.at(), std::move(message), std::move(hint));
}

std::vector<std::byte> TorchArchive::read_checked(std::string_view record, std::uint64_t max) const {
  auto const* const found = zip_.find(prefix_ + std::string(record));
  if (found == nullptr) {
    refuse_file(zip_.source(), "zip directory",
                "this is a zip archive, but not one of torch: it has no record \"" + std::string(record) + "\"", "");
  }
  auto bytes = zip_.read_small(*found, max);
  // These records determine the meaning of all other bytes, so their CRCs are always required.
  if (options_.crc != CrcPolicy::ignore && crc32(0, bytes) != found->crc) refuse_crc(zip_.source(), *found);
  return bytes;
}

void TorchArchive::check_kind() const {
  for (auto const& record : zip_.records()) {
    auto const name = std::string_view(record.name).substr(prefix_.size());
    if (name == "constants.pkl" || name.starts_with("code/")) {
      refuse_file(zip_.source(), "zip directory", "this is a TorchScript program, not saved weights",
                  "save its weights: torch.save(torch.jit.load(path).state_dict(), path)");
    }
  }
  if (zip_.find(prefix_ + "byteorder") != nullptr && as_text(read_checked("byteorder", 16)) != "little")
    refuse_file(zip_.source(), "byteorder", "the archive was written on a machine of another byte order",
                "load and save it with torch on this machine");
  auto const* const record = zip_.find(prefix_ + "version") != nullptr ? "version" : ".data/version";
  auto const bytes = read_checked(record, 16);
  auto const text = as_text(bytes);
  int version = 0;
  auto const end = std::from_chars(text.data(), text.data() + text.size(), version).ptr;
  if (version < 1 || version > newest_version || std::string_view(end, text.data() + text.size()).size() > 1)
    refuse_file(zip_.source(), "version",
                "the archive has version \"" + printable(text) + "\", but only 1 to 10 are known", "");
}

void TorchArchive::read_values() {
  auto const* const record = zip_.find(prefix_ + "data.pkl");
  auto bytes = read_checked("data.pkl", options_.limits.pickle_bytes);
  pickle_ = {.allowlist = options_.allowlist,
             .extra_globals = options_.extra_globals,
             .limits = options_.limits,
             .source = name(),
             .section = "data.pkl",
             .base = record->begin};
  tree_ = read_pickle(std::move(bytes), pickle_);
  auto const count = static_cast<PickleId>(tree_->nodes.size());
  for (PickleId id = 0; id < count; ++id) {
    if (tree_->nodes[id].kind == PickleKind::persistent) take_storage({*tree_, id});
  }
  for (PickleId id = 0; id < count; ++id) {
    if (tree_->nodes[id].kind == PickleKind::call) take_tensor({*tree_, id});
  }
  verified_ = std::make_unique<std::atomic<bool>[]>(storages_.size());
}

void TorchArchive::take_storage(PickleValue persistent) {
  auto const id = persistent[0];
  if (!id.is(PickleKind::tuple) || id.size() < 5 || id[0].text() != "storage" || !id[1].is(PickleKind::global) ||
      !is_torch_storage(id[1].text()) || !id[2].is(PickleKind::text) || !id[4].is(PickleKind::integer) ||
      id[4].integer() < 0)
    refuse(persistent, "a persistent id does not name a storage");
  auto const* const dtype = find_torch_storage(id[1].text());
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(id[4].natural(), dtype == nullptr ? std::size_t{1} : dtype->element_bytes, &bytes))
    refuse(persistent, "a storage has more bytes than 64 bits can count");
  auto const [known, is_new] = by_key_.try_emplace(id[2].text(), static_cast<std::uint32_t>(storages_.size()));
  storage_ids_.emplace(persistent.id(), known->second);
  if (!is_new) {
    auto const& before = storages_[known->second];
    if (before.bytes != bytes || before.cls != id[1].text()) refuse(persistent, "a storage is described in two ways");
    return;
  }
  auto const* const record = zip_.find(prefix_ + "data/" + std::string(id[2].text()));
  if (record == nullptr) {
    refuse(persistent, "the archive has no record for the storage \"" + printable(id[2].text().substr(0, 80)) + "\"");
  }
  if (record->size != bytes) {
    refuse(persistent,
           "a storage has " + std::to_string(bytes) + " bytes and its record " + std::to_string(record->size));
  }
  storages_.push_back(
      {std::string(id[2].text()), id[1].text(), bytes, static_cast<std::uint32_t>(record - zip_.records().data())});
}

std::optional<std::uint32_t> TorchArchive::storage_of(PickleValue value) const noexcept {
  auto const found = storage_ids_.find(value.id());
  return found == storage_ids_.end() ? std::nullopt : std::optional(found->second);
}

void TorchArchive::take_tensor(PickleValue call) {
  auto const rebuild = find_rebuild(call);
  if (!rebuild || wraps_tensor(*rebuild)) return;
  auto const storage = rebuild->arguments.size() > 0 ? storage_of(rebuild->arguments[0]) : std::nullopt;
  std::string problem;
  auto tensor = describe_tensor(*rebuild, storage ? &storages_[*storage] : nullptr, storage.value_or(0), problem);
  if (!problem.empty()) refuse(call, std::move(problem));
  tensors_.emplace(call.id(), std::move(tensor));
}

TorchTensor const* TorchArchive::tensor(PickleValue value) const noexcept {
  // The pickle's limit also limits how deeply tensors wrap each other.
  for (auto rebuild = find_rebuild(value); rebuild && wraps_tensor(*rebuild) && rebuild->arguments.size() > 0;
       rebuild = find_rebuild(value))
    value = rebuild->arguments[0];
  auto const found = tensors_.find(value.id());
  return found == tensors_.end() ? nullptr : &found->second;
}

void TorchArchive::apply_crc_policy(std::uint32_t storage, bool holds) const {
  if (!holds && options_.crc == CrcPolicy::require) refuse_crc(zip_.source(), record_of(storage));
  if (!holds)
    log_event(LogLevel::warning, "a record does not match its CRC",
              {{"file", name()}, {"record", record_of(storage).name}});
  verified_[storage].store(true, std::memory_order_relaxed);
}

void TorchArchive::verify(std::uint32_t storage) const {
  if (options_.crc == CrcPolicy::ignore || verified_[storage].load(std::memory_order_relaxed)) return;
  apply_crc_policy(storage, zip_.crc_holds(record_of(storage)));
}

void TorchArchive::read_storage(std::uint32_t storage, std::span<std::byte> out) const {
  auto const& record = record_of(storage);
  auto const check = options_.crc != CrcPolicy::ignore;
  std::uint32_t crc = 0;
  // In blocks that stay in the cache until their CRC is known.
  for (std::size_t done = 0; done < out.size();) {
    auto const part = out.subspan(done, std::min(archive_block_bytes, out.size() - done));
    zip_.source().read_at(record.begin + done, part);
    if (check) crc = crc32(crc, part);
    done += part.size();
  }
  if (check) apply_crc_policy(storage, crc == record.crc);
}

void TorchArchive::read(TorchTensor const& tensor, std::uint64_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  auto const& storage = storages_[tensor.storage];
  if (offset == 0 && out.size() == storage.bytes && tensor.view.is_dense()) return read_storage(tensor.storage, out);
  verify(tensor.storage);
  // Of a dense tensor nothing else is needed.
  auto const block = tensor.view.is_dense() ? out.size() : ReadWindow::block_bytes;
  ReadWindow window(zip_.source(), record_of(tensor.storage).begin, storage.bytes, block);
  read_strided(window, tensor.view, offset, out);
}

}  // namespace crossrank::codec
