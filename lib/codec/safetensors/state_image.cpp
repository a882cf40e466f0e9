#include "lib/codec/safetensors/state_image.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>
#include <utility>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/config_json.hpp"
#include "lib/codec/safetensors/state_file_name.hpp"
#include "lib/codec/safetensors/image_writer.hpp"
#include "lib/codec/json/integer_signedness.hpp"
#include "lib/codec/safetensors/unknown_tensor.hpp"

namespace crossrank::codec {
namespace {

template <class T>
bool parse_number(std::string const& text, T& out) {
  auto const* const end = text.data() + text.size();
  auto const [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end;
}

/// Returns whether the header matches its own checksum, whose digits count as zeros.
bool header_is_intact(std::span<std::byte const> prefix, std::string const& written) {
  auto const at = find_header_checksum(prefix);
  if (!at) return false;
  StreamingChecksum running;
  std::string const zeros(checksum_digits, '0');
  running.update(prefix.first(*at));
  running.update(std::as_bytes(std::span(zeros)));
  running.update(prefix.subspan(*at + checksum_digits));
  return written == to_hex(running.digest());
}

std::string identity_text(int rank, std::uint64_t writer, std::uint64_t sequence) {
  return "rank " + std::to_string(rank) + ", writer " + to_hex(writer) + ", sequence " + std::to_string(sequence);
}

}  // namespace

StateImage StateImage::open(std::shared_ptr<ByteSource const> source, ReadOptions const& options) {
  StateImage image;
  image.source_ = std::move(source);
  auto const size = image.source_->size();
  ParseOptions const parse{options.strictness, options.header_limit, image.source_->name()};

  std::vector<std::byte> prefix(std::min<std::uint64_t>(size, 8));
  image.source_->read_at(0, prefix);
  prefix.resize(header_extent(prefix, size, parse));
  image.source_->read_at(8, std::span(prefix).subspan(8));
  image.header_ = parse_header(prefix, size, parse);
  auto const& entries = image.header_.entries;
  image.by_name_.resize(entries.size());
  std::iota(image.by_name_.begin(), image.by_name_.end(), 0U);
  std::sort(image.by_name_.begin(), image.by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries[a].name < entries[b].name; });
  image.take_metadata(prefix, options.kind);
  return image;
}

void StateImage::refuse_metadata(std::string message, std::string_view key) const {
  throw FormatError({.operation = "state image",
                     .message = std::move(message) + " (\"" + std::string(key) + "\")",
                     .resource = source_->name(),
                     .hint = "write the state again, or rename the file and remove its crossrank.* keys",
                     .section = "header",
                     .offset = 8});
}

std::string const& StateImage::required(std::string_view key) const {
  auto const* value = header_.find_metadata(key);
  if (value == nullptr) refuse_metadata("a key is missing in the header", key);
  return *value;
}

void StateImage::take_identity() {
  if (required(metadata_key::version) != image_version)
    refuse_metadata("this version cannot be read", metadata_key::version);
  if (!parse_number(required(metadata_key::rank), identity_.rank)) refuse_metadata("not a number", metadata_key::rank);
  if (!parse_number(required(metadata_key::world_size), identity_.world_size))
    refuse_metadata("not a number", metadata_key::world_size);
  auto const writer = from_hex(required(metadata_key::writer));
  if (!writer) refuse_metadata("not the number of a writer", metadata_key::writer);
  identity_.writer = *writer;
  if (!parse_number(required(metadata_key::sequence), identity_.sequence))
    refuse_metadata("not a number", metadata_key::sequence);
  identity_.job = required(metadata_key::job);
}

/// Refuses a file that was renamed, because it would be read as the state of another rank or writer.
void StateImage::require_own_name() const {
  auto const named = state_file_name_at(source_->name());
  if (!named) return;
  if (named->rank == identity_.rank && named->writer == identity_.writer && named->counter == identity_.sequence)
    return;
  throw FormatError({.operation = "state image",
                     .message = "the name of the file contradicts its metadata",
                     .expected = identity_text(named->rank, named->writer, named->counter),
                     .got = identity_text(identity_.rank, identity_.writer, identity_.sequence),
                     .resource = source_->name(),
                     .hint = "rename the file to the name under which it was written",
                     .section = "header"});
}

/// Reads the keys of a state image. A plain file with neither these keys nor such a name is read without checksums.
void StateImage::take_metadata(std::span<std::byte const> prefix, ImageKind kind) {
  auto const* digest = header_.find_metadata(metadata_key::header_checksum);
  if (digest == nullptr || !header_is_intact(prefix, *digest)) {
    bool const ours = says_state_image(header_.metadata) || state_file_name_at(source_->name());
    if (kind == ImageKind::plain && !ours) return;
    refuse_metadata(digest == nullptr ? "the header of a state image has no checksum"
                                      : "the header does not match its checksum: it is damaged, or another program "
                                        "changed it",
                    metadata_key::header_checksum);
  }
  take_identity();
  require_own_name();
  config_ = decode_config(required(metadata_key::config));
  if (auto const* kinds = header_.find_metadata(metadata_key::integers);
      kinds != nullptr && !restore_integer_signedness(*kinds, config_))
    refuse_metadata("the runs do not match the config's integers", metadata_key::integers);
  if (!decode_order(required(metadata_key::order), required(metadata_key::absent), header_.entries.size(), order_)) {
    refuse_metadata("the order does not match the tensors", metadata_key::order);
  }
  std::string_view const digits = required(metadata_key::checksums);
  if (digits.size() != header_.entries.size() * checksum_digits)
    refuse_metadata("the number of checksums is not the number of tensors", metadata_key::checksums);
  for (std::size_t at = 0; at < digits.size(); at += checksum_digits) {
    auto const value = from_hex(digits.substr(at, checksum_digits));
    if (!value) refuse_metadata("not a checksum", metadata_key::checksums);
    checksums_.push_back(*value);
  }
  checked_ = true;
}

std::size_t StateImage::index_of(std::string_view name) const {
  auto const& entries = header_.entries;
  auto const found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t index, std::string_view wanted) { return entries[index].name < wanted; });
  if (found != by_name_.end() && entries[*found].name == name) return *found;
  refuse_unknown_tensor(checked_ ? "state image" : "safetensors read", name, entries, source_->name());
}

RankState StateImage::read_all() const {
  auto tensors = read_tensors();
  RankState state;
  state.config = config_;
  if (!checked_) {
    state.weights.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      state.weights.insert_or_assign(header_.entries[i].name, std::move(tensors[i]));
    return state;
  }
  state.weights.reserve(order_.places.size());
  auto absent = order_.absent_names.begin();
  for (auto const place : order_.places) {
    if (place == absent_place) {
      state.weights.insert_or_assign(*absent++, Tensor{});
    } else {
      state.weights.insert_or_assign(header_.entries[place].name, std::move(tensors[place]));
    }
  }
  if (state.weights.size() != order_.places.size())
    refuse_metadata("an absent tensor has the name of another", metadata_key::absent);
  return state;
}

}  // namespace crossrank::codec
