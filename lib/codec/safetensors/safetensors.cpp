#include <crossrank/safetensors.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/spi/mapped_storage.hpp>

#include "lib/codec/io/byte_source.hpp"
#include "lib/codec/safetensors/header_writer.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"
#include "lib/codec/safetensors/image_metadata.hpp"
#include "lib/codec/safetensors/state_file_name.hpp"
#include "lib/codec/safetensors/state_image.hpp"
#include "lib/codec/safetensors/tensor_name.hpp"
#include "lib/codec/safetensors/unknown_tensor.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/copy_memory.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/staged_read.hpp"
#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/files/directory.hpp"
#include "lib/platform/files/file_mapping.hpp"
#include "lib/platform/files/fd.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank {
namespace {

constexpr char const* read_operation = "safetensors read";
constexpr char const* write_operation = "safetensors write";
// Rows are copied from blocks of this size, which is large enough to make system calls rare.
constexpr std::size_t block_bytes = std::size_t{1} << 20;
// Alignment of the reference implementation.
constexpr std::size_t header_alignment = 8;

platform::Fd open_for_reading(std::filesystem::path const& path) {
  // O_NONBLOCK: a pipe must not block the open; its type is refused later.
  int const fd = platform::system().openat(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
  if (fd < 0) platform::throw_io(read_operation, path.string(), errno);
  return platform::Fd(fd);
}

}  // namespace

namespace {

/// A file mapped read-only. It has a descriptor of its own, because views may outlive the `SafetensorsFile`.
class MappedFile final : public spi::MappedStorage {
 public:
  MappedFile(std::filesystem::path const& path, int fd, std::uint64_t bytes)
      : name_(path.string()),
        fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)),
        mapping_(fd_.get(), 0, bytes, platform::FileMapping::Access::read_only) {
    if (!mapping_.is_mapped())
      platform::throw_io(read_operation, name_, mapping_.error(), "raise ulimit -n or ulimit -v");
  }
  [[nodiscard]] std::byte* data() noexcept override { return mapping_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return mapping_.size(); }
  [[nodiscard]] std::string frozen_by() const override { return "the file " + name_ + ", which is mapped"; }
  [[nodiscard]] spi::Backing backing() const noexcept override { return {.descriptor = fd_.get(), .offset = 0}; }

 private:
  std::string name_;
  platform::Fd fd_;
  platform::FileMapping mapping_;
};

}  // namespace

struct SafetensorsFile::State {
  explicit State(std::filesystem::path where)
      : path(std::move(where)),
        fd(open_for_reading(path)),
        source(std::make_shared<codec::FileSource>(path.string(), fd.get())),
        image(codec::StateImage::open(source, {.kind = codec::ImageKind::plain})) {
    entries.reserve(image.entries().size());
    for (auto const& entry : image.entries()) {
      by_name.push_back(static_cast<std::uint32_t>(entries.size()));
      entries.push_back({entry.name, entry.dtype, entry.shape});
    }
    std::sort(by_name.begin(), by_name.end(), [&](auto a, auto b) { return entries[a].name < entries[b].name; });
  }

  /// Returns the entry called `name`, or null.
  [[nodiscard]] codec::HeaderEntry const* find(std::string_view name) const noexcept {
    auto const at = std::lower_bound(by_name.begin(), by_name.end(), name,
                                     [&](auto i, auto wanted) { return entries[i].name < wanted; });
    return at != by_name.end() && entries[*at].name == name ? &image.entries()[*at] : nullptr;
  }

  [[noreturn]] void refuse_name(std::string_view name) const {
    codec::refuse_unknown_tensor(read_operation, name, image.entries(), path.string());
  }

  std::filesystem::path path;
  platform::Fd fd;
  std::shared_ptr<codec::FileSource const> source;
  codec::StateImage image;
  std::vector<SafetensorsEntry> entries{};
  /// Maps the file at the first call, which is thread-safe.
  [[nodiscard]] std::shared_ptr<spi::Storage> const& mapped() const {
    std::call_once(map_once, [this] { storage = std::make_shared<MappedFile>(path, fd.get(), source->size()); });
    return storage;
  }

  std::vector<std::uint32_t> by_name{};  ///< indices of `entries`, sorted by name
  mutable std::once_flag map_once{};
  mutable std::shared_ptr<spi::Storage> storage{};  ///< of the mapped file
};

namespace {

/// A slice of a dense tensor: bytes from `skip` on in each of `rows` rows.
struct RowSlice {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t skip = 0;
  std::uint64_t take = 0;
};

[[noreturn]] void refuse_slice(codec::HeaderEntry const& entry, std::string const& path, std::string message,
                               std::string got) {
  throw UsageError({.operation = read_operation,
                    .message = std::move(message) + " of \"" + entry.name + "\"",
                    .expected = std::string(name_of(entry.dtype)) + " " + to_string(entry.shape),
                    .got = std::move(got),
                    .resource = path});
}

RowSlice row_slice_of(codec::HeaderEntry const& entry, std::size_t axis, std::int64_t begin, std::int64_t length,
                      std::string const& path) {
  RowSlice slice;
  for (std::size_t i = 0; i < axis; ++i) slice.rows *= static_cast<std::uint64_t>(entry.shape[i]);
  std::uint64_t inner_bits = bits_of(entry.dtype);
  // The header was checked, so products up to the size of the tensor fit, unless a length is 0.
  for (std::size_t i = axis + 1; i < entry.shape.size(); ++i) inner_bits *= static_cast<std::uint64_t>(entry.shape[i]);
  auto const bytes = [&](std::int64_t count) {
    auto const bits = static_cast<std::uint64_t>(count) * inner_bits;
    if (bits % 8 != 0)
      refuse_slice(entry, path, "the slice begins or ends inside a byte",
                   std::to_string(begin) + " + " + std::to_string(length));
    return bits / 8;
  };
  slice.row_bytes = bytes(entry.shape[axis]);
  slice.skip = bytes(begin);
  slice.take = bytes(length);
  return slice;
}

/// Reads the slice. Small rows are read whole, many at once, because each system call costs more than the extra bytes.
void read_row_slice(codec::FileSource const& source, std::uint64_t at, RowSlice const& slice,
                    std::span<std::byte> out) {
  if (slice.rows == 1 || slice.take == slice.row_bytes) return source.read_at(at + slice.skip, out);
  if (slice.row_bytes > block_bytes) {
    for (std::uint64_t row = 0; row < slice.rows; ++row)
      source.read_at(at + row * slice.row_bytes + slice.skip, out.subspan(row * slice.take, slice.take));
    return;
  }
  auto const rows_per_block = block_bytes / slice.row_bytes;
  std::vector<std::byte> block(std::min(rows_per_block, slice.rows) * slice.row_bytes);
  for (std::uint64_t row = 0; row < slice.rows; row += rows_per_block) {
    auto const rows = std::min(rows_per_block, slice.rows - row);
    source.read_at(at + row * slice.row_bytes, std::span(block).first(rows * slice.row_bytes));
    for (std::uint64_t i = 0; i < rows; ++i) {
      copy_memory(out.data() + (row + i) * slice.take, block.data() + i * slice.row_bytes + slice.skip, slice.take);
    }
  }
}

std::string entry_label(std::string_view name) { return "\"" + codec::printable(name.substr(0, 80)) + "\": "; }

[[noreturn]] void refuse_write(std::filesystem::path const& path, std::string message, std::string_view name) {
  throw UsageError(
      {.operation = write_operation, .message = entry_label(name) + std::move(message), .resource = path.string()});
}

[[noreturn]] void refuse_target(std::filesystem::path const& path, std::string message, std::string hint) {
  throw UsageError({.operation = write_operation,
                    .message = std::move(message),
                    .resource = path.string(),
                    .hint = std::move(hint)});
}

/// Refuses a path under which no file can be written, or not read again.
void check_target(std::filesystem::path const& path) {
  if (path.native().find('\0') != std::string::npos)  // the system would end the path there
    refuse_target(path, "the path contains a zero byte", "remove it");
  if (!path.has_filename())
    refuse_target(path, "the path has no file name", "add a file name, such as model.safetensors");
  if (codec::state_file_name_at(path.native()))
    refuse_target(path, "the name is reserved for the state files of workspaces", "choose another name");
}

/// Refuses an existing file before all bytes are written. `AtomicFile::commit` refuses one that appears later.
void check_name_is_free(platform::Directory const& directory, std::string const& name, bool force) {
  struct stat status {};
  bool const exists = platform::system().fstatat(directory.fd(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  bool const is_directory = exists && S_ISDIR(status.st_mode);
  if (exists && force && !is_directory) return;
  int const error = is_directory ? EISDIR : exists ? EEXIST : errno;
  if (error == ENOENT) return;
  platform::throw_io(ErrorInfo{.operation = write_operation,
                               .message = "the file was not committed; 0 bytes were written",
                               .resource = directory.path_of(name),
                               .hint = is_directory ? "give the path of a file"
                                       : exists     ? "set `force` to replace the file"
                                                    : ""},
                     error);
}

void check_entry(std::filesystem::path const& path, std::string_view name, Tensor const& tensor) {
  if (!tensor.defined()) {
    throw_undefined({.operation = write_operation, .message = entry_label(name), .resource = path.string()});
  }
  if (auto const error = codec::find_name_error(name)) refuse_write(path, *error, name);
  require_readable(tensor, write_operation);
}

using Piece = StateDict::value_type const*;

/// Returns the order of the reference implementation: widest elements first, so that each tensor is aligned to its
/// element size, then by name.
std::vector<Piece> arrange(std::filesystem::path const& path, StateDict const& weights) {
  if (weights.size() > codec::max_tensors) {
    refuse_target(path, "there are more than " + std::to_string(codec::max_tensors) + " tensors",
                  "write them into several files");
  }
  std::vector<Piece> pieces;
  pieces.reserve(weights.size());
  for (auto const& entry : weights) {
    check_entry(path, entry.first, entry.second);
    pieces.push_back(&entry);
  }
  std::sort(pieces.begin(), pieces.end(), [](Piece a, Piece b) {
    return std::make_tuple(b->second.dtype(), std::string_view(a->first)) <
           std::make_tuple(a->second.dtype(), std::string_view(b->first));
  });
  return pieces;
}

std::string compose_header(std::filesystem::path const& path, std::span<Piece const> pieces,
                           SafetensorsOptions const& options) {
  if (options.metadata.size() > codec::max_metadata_entries) {
    refuse_target(path, "there are more than " + std::to_string(codec::max_metadata_entries) + " metadata entries",
                  "write fewer");
  }
  if (codec::says_state_image(options.metadata)) {
    // The checksums of a state image do not match a file with another header.
    refuse_target(path, "the metadata has keys of a state image, which the new file is not",
                  "leave out the keys that begin with \"crossrank.\"");
  }
  codec::HeaderWriter writer;
  std::set<std::string_view> keys;
  for (auto const& [key, value] : options.metadata) {
    if (codec::find_bad_utf8(key) != std::string_view::npos) refuse_write(path, "the metadata key is not UTF-8", key);
    if (codec::find_bad_utf8(value) != std::string_view::npos) refuse_write(path, "the metadata is not UTF-8", key);
    if (!keys.insert(key).second) refuse_write(path, "the metadata key occurs twice", key);
    writer.add_metadata(key, value);
  }
  std::uint64_t cursor = 0;
  for (auto const* piece : pieces) {
    auto const& [name, tensor] = *piece;
    writer.add_tensor(name, tensor.dtype(), tensor.shape(), cursor, cursor + tensor.nbytes());
    cursor += tensor.nbytes();
  }
  return std::move(writer).finish(header_alignment);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : state_(std::make_shared<State const>(std::move(path))) {}

std::filesystem::path const& SafetensorsFile::path() const noexcept { return state_->path; }

std::span<SafetensorsEntry const> SafetensorsFile::entries() const noexcept { return state_->entries; }

SafetensorsEntry const* SafetensorsFile::find(std::string_view name) const noexcept {
  auto const* const entry = state_->find(name);
  return entry == nullptr ? nullptr : &state_->entries[as_size(entry - state_->image.entries().data())];
}

std::vector<std::pair<std::string, std::string>> const& SafetensorsFile::metadata() const noexcept {
  return state_->image.header().metadata;
}

Tensor SafetensorsFile::read(std::string_view name) const { return state_->image.read(name); }

Tensor SafetensorsFile::map(std::string_view name) const {
  auto const* const entry = state_->find(name);
  if (entry == nullptr) state_->refuse_name(name);
  if (entry->begin == entry->end) return Tensor::empty(entry->shape, entry->dtype);
  return spi::tensor_from_storage(state_->mapped(), state_->image.header().data_start + entry->begin, entry->shape,
                                  entry->dtype);
}

Tensor SafetensorsFile::read_slice(std::string_view name, Dim dim, std::int64_t begin, std::int64_t length) const {
  auto const path = state_->path.string();
  auto const* const entry = state_->find(name);
  if (entry == nullptr) state_->refuse_name(name);
  auto const dims = static_cast<std::int64_t>(entry->shape.size());
  auto const axis = dim.dim < 0 ? dim.dim + dims : dim.dim;
  if (axis < 0 || axis >= dims) refuse_slice(*entry, path, "the dimension does not exist", std::to_string(dim.dim));
  auto const at = as_size(axis);
  auto const full = entry->shape[at];
  if (begin < 0 || length < 0 || begin > full || length > full - begin) {
    refuse_slice(*entry, path, "the range is outside dimension " + std::to_string(axis),
                 std::to_string(length) + " from " + std::to_string(begin));
  }
  auto out = Tensor::empty(entry->shape.with(at, length), entry->dtype);
  if (out.nbytes() == 0) return out;
  read_row_slice(*state_->source, state_->image.header().data_start + entry->begin,
                 row_slice_of(*entry, at, begin, length, path), out.mutable_bytes());
  return out;
}

StateDict load_safetensors(std::filesystem::path const& path) {
  SafetensorsFile const file(path);
  StateDict weights;
  weights.reserve(file.entries().size());
  for (auto const& entry : file.entries()) weights.insert_or_assign(entry.name, file.read(entry.name));
  return weights;
}

void save_safetensors(std::filesystem::path const& path, StateDict const& weights, SafetensorsOptions const& options) {
  check_target(path);
  auto const pieces = arrange(path, weights);
  auto const header = compose_header(path, pieces, options);
  auto const directory = platform::Directory::open(path.has_parent_path() ? path.parent_path() : ".", write_operation,
                                                   platform::IfMissing::refuse, platform::OtherWriters::accept);
  auto const name = path.filename().string();
  check_name_is_free(directory, name, options.force);
  platform::AtomicFile file(directory, name, header.size() + weights.nbytes(), write_operation,
                            platform::Readers::as_umask);
  file.write(std::as_bytes(std::span(header)));
  for (auto const* piece : pieces) {
    read_in_pieces(piece->second, [&](std::span<std::byte const> bytes) { file.write(bytes); });
  }
  file.commit(options.force ? platform::IfExists::replace : platform::IfExists::refuse);
}

}  // namespace crossrank
