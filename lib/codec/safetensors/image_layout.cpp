#include "lib/codec/safetensors/image_layout.hpp"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/config_json.hpp"
#include "lib/codec/json/integer_signedness.hpp"
#include "lib/codec/safetensors/header_writer.hpp"
#include "lib/codec/safetensors/tensor_name.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {
namespace {

[[noreturn]] void refuse(std::string message, std::string resource = {}) {
  throw UsageError({.operation = "state image", .message = std::move(message), .resource = std::move(resource)});
}

void check_text(std::string_view text, char const* what) {
  auto const shown = printable(text.substr(0, 80));
  if (find_bad_utf8(text) != std::string_view::npos) refuse(std::string(what) + " is not UTF-8", shown);
  if (text.find('\0') != std::string_view::npos) refuse(std::string(what) + " contains NUL", shown);
}

void check_name(std::string_view name) {
  if (auto const error = find_name_error(name)) refuse("a tensor: " + *error, printable(name.substr(0, 80)));
}

void check_options(ImageOptions const& options) {
  if (!std::has_single_bit(options.alignment) || options.alignment < 8 || options.alignment > 65536) {
    refuse("the alignment is not a power of two from 8 to 65536", std::to_string(options.alignment));
  }
  check_text(options.identity.job, "the job id");
}

/// Returns the order of the reference implementation: widest elements first, so that each tensor is aligned to its
/// element size, then by name.
std::vector<std::size_t> data_order(std::span<ImageTensor const> tensors, ImageOrder& order) {
  std::vector<std::size_t> sorted;
  order.places.assign(tensors.size(), absent_place);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_name(tensors[i].name);
    if (tensors[i].absent) {
      order.absent_names.emplace_back(tensors[i].name);
    } else {
      sorted.push_back(i);
    }
  }
  std::sort(sorted.begin(), sorted.end(), [&](auto a, auto b) {
    return std::tie(tensors[b].dtype, tensors[a].name) < std::tie(tensors[a].dtype, tensors[b].name);
  });
  for (std::size_t place = 0; place < sorted.size(); ++place)
    order.places[sorted[place]] = static_cast<std::uint32_t>(place);
  return sorted;
}

}  // namespace

ImageLayout::ImageLayout(Json const& config, std::span<ImageTensor const> tensors, ImageOptions const& options) {
  check_options(options);
  if (tensors.size() > max_tensors) refuse("more than " + std::to_string(max_tensors) + " tensors");
  ImageOrder order;
  auto const sorted = data_order(tensors, order);
  auto const absent = encode_absent_names(order);
  if (absent.size() > max_config_bytes)
    refuse("the names of absent tensors have " + std::to_string(absent.size()) + " bytes in total");

  HeaderWriter writer(ControlEscapes::numeric);
  writer.add_metadata(metadata_key::format, "pt");
  writer.add_metadata(metadata_key::version, image_version);
  writer.add_metadata(metadata_key::rank, std::to_string(options.identity.rank));
  writer.add_metadata(metadata_key::world_size, std::to_string(options.identity.world_size));
  writer.add_metadata(metadata_key::job, options.identity.job);
  writer.add_metadata(metadata_key::writer, to_hex(options.identity.writer));
  writer.add_metadata(metadata_key::sequence, std::to_string(options.identity.sequence));
  writer.add_metadata(metadata_key::config, encode_config(config));
  if (auto const kinds = encode_integer_signedness(config); !kinds.empty())
    writer.add_metadata(metadata_key::integers, kinds);
  writer.add_metadata(metadata_key::order, encode_places(order));
  writer.add_metadata(metadata_key::absent, absent);
  checksums_at_ = writer.add_metadata(metadata_key::checksums, std::string(sorted.size() * checksum_digits, '0'));
  header_checksum_at_ = writer.add_metadata(metadata_key::header_checksum, std::string(checksum_digits, '0'));

  std::uint64_t cursor = 0;
  for (auto const number : sorted) {
    auto const& tensor = tensors[number];
    Extent extent{number, cursor, dense_bytes(tensor.shape, tensor.dtype)};
    if (__builtin_add_overflow(cursor, extent.bytes, &cursor)) refuse("the size of the file overflows");
    writer.add_tensor(tensor.name, tensor.dtype, tensor.shape, extent.offset, cursor);
    extents_.push_back(extent);
  }
  header_ = std::move(writer).finish(options.alignment);
  for (auto& extent : extents_) extent.offset += header_.size();
  if (__builtin_add_overflow(cursor, header_.size(), &file_bytes_)) refuse("the size of the file overflows");
}

std::string ImageLayout::sealed_header(std::span<std::uint64_t const> digests) const {
  if (digests.size() != extents_.size())
    refuse("there are checksums of " + std::to_string(digests.size()) + " tensors for " +
           std::to_string(extents_.size()));
  auto header = header_;
  for (std::size_t i = 0; i < digests.size(); ++i)
    header.replace(checksums_at_ + i * checksum_digits, checksum_digits, to_hex(digests[i]));
  auto const digest = checksum(std::as_bytes(std::span(std::as_const(header))));
  header.replace(header_checksum_at_, checksum_digits, to_hex(digest));
  return header;
}

}  // namespace crossrank::codec
