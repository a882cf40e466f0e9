#include "lib/codec/image_writer.hpp"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "lib/codec/checksum.hpp"
#include "lib/codec/config_json.hpp"
#include "lib/codec/header_writer.hpp"
#include "lib/codec/json_text.hpp"
#include "lib/codec/limits.hpp"

namespace crossrank::codec {
namespace {

// Small enough to stay in a core's cache between hashing and writing, large enough to make system calls rare.
constexpr std::size_t chunk_bytes = std::size_t{512} << 10;

[[noreturn]] void refuse(std::string message, std::string resource = {}) {
  throw UsageError({.operation = "state image", .message = std::move(message), .resource = std::move(resource)});
}

void check_text(std::string_view text, char const* what) {
  auto const shown = printable(text.substr(0, 80));
  if (find_bad_utf8(text) != std::string_view::npos) refuse(std::string(what) + " is not UTF-8", shown);
  if (text.find('\0') != std::string_view::npos) refuse(std::string(what) + " contains NUL", shown);
}

void check_name(std::string_view name) {
  check_text(name, "a tensor's name");
  if (name == "__metadata__") refuse("this name is taken by the format", "__metadata__");
  if (name.size() > max_name_bytes) {
    refuse("a tensor's name has " + std::to_string(name.size()) + " bytes, more than " + std::to_string(max_name_bytes),
           printable(name.substr(0, 80)));
  }
}

void check_options(ImageOptions const& options) {
  if (!std::has_single_bit(options.alignment) || options.alignment < 8 || options.alignment > 65536) {
    refuse("the alignment is no power of two from 8 to 65536", std::to_string(options.alignment));
  }
  check_text(options.identity.job, "the job id");
}

struct Arrangement {
  std::vector<ImagePiece> pieces;  ///< in data order; offsets not yet set
  ImageOrder order;
};

/// Widest elements first, so that each tensor stands on a multiple of its element, then by name, as the reference
/// writes.
Arrangement arrange(StateDict const& weights) {
  struct Source {
    std::string_view name;
    Tensor const* tensor;
    std::size_t position;
  };
  Arrangement out;
  std::vector<Source> sources;
  out.order.places.assign(weights.size(), absent_place);
  std::size_t position = 0;
  for (auto const& [name, tensor] : weights) {
    check_name(name);
    if (tensor.defined()) {
      sources.push_back({name, &tensor, position});
    } else {
      out.order.absent_names.push_back(name);
    }
    ++position;
  }
  std::sort(sources.begin(), sources.end(), [](Source const& a, Source const& b) {
    return std::make_tuple(b.tensor->dtype(), a.name) < std::make_tuple(a.tensor->dtype(), b.name);
  });
  for (auto const& source : sources) {
    (void)source.tensor->bytes();  // refuses what is not on the CPU before anything is written
    out.order.places[source.position] = static_cast<std::uint32_t>(out.pieces.size());
    out.pieces.push_back({0, *source.tensor, source.name});
  }
  return out;
}

}  // namespace

ImagePlan::ImagePlan(Json const& config, StateDict const& weights, ImageOptions const& options) {
  check_options(options);
  if (weights.size() > max_tensors) refuse("there are more than " + std::to_string(max_tensors) + " tensors");
  auto arranged = arrange(weights);
  pieces_ = std::move(arranged.pieces);
  told_.assign(pieces_.size(), false);

  auto const absent = encode_absent_names(arranged.order);
  if (absent.size() > max_config_bytes)
    refuse("the names of absent tensors have " + std::to_string(absent.size()) + " bytes in all");

  HeaderWriter writer;
  writer.add_metadata(metadata_key::format, "pt");
  writer.add_metadata(metadata_key::version, image_version);
  writer.add_metadata(metadata_key::rank, std::to_string(options.identity.rank));
  writer.add_metadata(metadata_key::world_size, std::to_string(options.identity.world_size));
  writer.add_metadata(metadata_key::job, options.identity.job);
  writer.add_metadata(metadata_key::sequence, std::to_string(options.identity.sequence));
  writer.add_metadata(metadata_key::config, encode_config(config));
  writer.add_metadata(metadata_key::order, encode_places(arranged.order));
  writer.add_metadata(metadata_key::absent, absent);
  checksums_at_ = writer.add_metadata(metadata_key::checksums, std::string(pieces_.size() * checksum_digits, '0'));
  header_checksum_at_ = writer.add_metadata(metadata_key::header_checksum, std::string(checksum_digits, '0'));

  std::uint64_t cursor = 0;
  for (auto& piece : pieces_) {
    piece.offset = cursor;
    if (__builtin_add_overflow(cursor, piece.tensor.nbytes(), &cursor)) refuse("the tensors overflow a file");
    writer.add_tensor(piece.name, piece.tensor.dtype(), piece.tensor.shape(), piece.offset, cursor);
  }
  header_ = std::move(writer).finish(options.alignment);
  for (auto& piece : pieces_) piece.offset += header_.size();
  if (__builtin_add_overflow(cursor, header_.size(), &file_bytes_)) refuse("the tensors overflow a file");
}

void ImagePlan::set_checksum(std::size_t piece, std::uint64_t digest) {
  if (piece >= pieces_.size()) refuse("there is no such piece", std::to_string(piece));
  header_.replace(checksums_at_ + piece * checksum_digits, checksum_digits, to_hex(digest));
  told_[piece] = true;
}

std::span<std::byte const> ImagePlan::sealed_header() {
  if (auto const missing = std::find(told_.begin(), told_.end(), false); missing != told_.end()) {
    refuse("a tensor has no checksum yet",
           std::string(pieces_[static_cast<std::size_t>(missing - told_.begin())].name));
  }
  header_.replace(header_checksum_at_, checksum_digits, std::string(checksum_digits, '0'));
  header_.replace(header_checksum_at_, checksum_digits, to_hex(checksum(std::as_bytes(std::span(header_)))));
  return std::as_bytes(std::span(std::as_const(header_)));
}

void write_image(ImagePlan& plan, ByteSink& sink) {
  RunningChecksum running;
  for (std::size_t i = 0; i < plan.pieces().size(); ++i) {
    auto const& piece = plan.pieces()[i];
    auto const bytes = piece.tensor.bytes();
    running.restart();
    for (std::size_t at = 0; at < bytes.size(); at += chunk_bytes) {
      auto const chunk = bytes.subspan(at, std::min(chunk_bytes, bytes.size() - at));
      running.update(chunk);
      sink.write_at(piece.offset + at, chunk);
    }
    plan.set_checksum(i, running.digest());
  }
  sink.write_at(0, plan.sealed_header());
}

std::optional<std::size_t> find_header_checksum(std::span<std::byte const> header) noexcept {
  std::string_view const text(reinterpret_cast<char const*>(header.data()), header.size());
  // The writer puts the key last among the metadata and escapes quotes inside values, so the first such sequence in a
  // header of ours is the key itself; in any other file the checksum then does not fit.
  static constexpr std::string_view key = R"("crossrank.header_checksum":")";
  auto const at = text.find(key);
  if (at == std::string_view::npos || text.size() - at - key.size() < checksum_digits) return std::nullopt;
  return at + key.size();
}

}  // namespace crossrank::codec
