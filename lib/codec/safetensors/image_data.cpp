#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/io/parallel_for.hpp"
#include "lib/codec/safetensors/state_image.hpp"

namespace crossrank::codec {
namespace {

// Small enough to stay in a core's cache between reading and hashing.
constexpr std::size_t chunk_bytes = std::size_t{512} << 10;
// Small tensors are read together, with one allocation and one system call.
constexpr std::uint64_t group_bytes = std::uint64_t{4} << 20;

std::uint64_t alignment_of(Dtype dtype) { return std::max<std::uint64_t>(1, bits_of(dtype) / 8); }

std::span<std::byte> bytes_of(Tensor& tensor) { return tensor.mutable_bytes(); }

/// Returns a buffer of `bytes` bytes as a tensor, which owns it.
Tensor allocate_buffer(std::uint64_t bytes) { return Tensor::empty({static_cast<std::int64_t>(bytes)}, Dtype::u8); }

}  // namespace

void StateImage::compare(std::size_t index, std::uint64_t digest) const {
  if (!checked_ || digest == checksums_[index]) return;
  auto const& entry = header_.entries[index];
  throw FormatError({.operation = "state image",
                     .message = "the bytes of tensor \"" + entry.name + "\" do not match their checksum",
                     .expected = to_hex(checksums_[index]),
                     .got = to_hex(digest),
                     .resource = source_->name(),
                     .hint = "the file was damaged after it was written: write it again",
                     .section = "data",
                     .offset = header_.data_start + entry.begin});
}

void StateImage::verify(std::string_view name) const {
  auto const index = index_of(name);
  if (!checked_) {
    throw UsageError(
        {.operation = "state image", .message = "the file has no checksums to verify", .resource = source_->name()});
  }
  auto const& entry = header_.entries[index];
  if (auto const memory = source_->memory()) {
    compare(index, checksum({memory->data() + header_.data_start + entry.begin, entry.nbytes()}));
    return;
  }
  auto buffer = allocate_buffer(std::min<std::uint64_t>(chunk_bytes, entry.nbytes()));
  StreamingChecksum running;
  for (auto at = entry.begin; at < entry.end;) {
    auto const chunk = bytes_of(buffer).first(std::min<std::uint64_t>(chunk_bytes, entry.end - at));
    source_->read_at(header_.data_start + at, chunk);
    running.update(chunk);
    at += chunk.size();
  }
  compare(index, running.digest());
}

Tensor StateImage::read(std::string_view name) const { return read_one(index_of(name)); }

Tensor StateImage::read_one(std::size_t index) const {
  auto const& entry = header_.entries[index];
  auto const start = header_.data_start + entry.begin;
  if (auto memory = source_->memory()) {
    auto view = spi::tensor_from_storage(std::move(memory), start, entry.shape, entry.dtype);
    if (checked_) compare(index, checksum(view.bytes()));
    return view;
  }
  auto tensor = Tensor::empty(entry.shape, entry.dtype);
  auto const bytes = bytes_of(tensor);
  if (!checked_) {
    source_->read_at(start, bytes);
    return tensor;
  }
  StreamingChecksum running;
  for (std::size_t at = 0; at < bytes.size(); at += chunk_bytes) {
    auto const chunk = bytes.subspan(at, std::min(chunk_bytes, bytes.size() - at));
    source_->read_at(start + at, chunk);
    running.update(chunk);
  }
  compare(index, running.digest());
  return tensor;
}

/// Returns the index after the last tensor that is read together with `first`: few bytes in total, each tensor aligned
/// to its element size.
std::size_t StateImage::group_end(std::size_t first) const noexcept {
  auto const begin = header_.entries[first].begin;
  auto last = first + 1;
  while (last < header_.entries.size()) {
    auto const& entry = header_.entries[last];
    if (entry.end - begin > group_bytes || (entry.begin - begin) % alignment_of(entry.dtype) != 0) break;
    ++last;
  }
  return last;
}

void StateImage::read_group(std::size_t first, std::size_t last, std::span<Tensor> out) const {
  auto const begin = header_.entries[first].begin;
  auto buffer = allocate_buffer(header_.entries[last - 1].end - begin);
  source_->read_at(header_.data_start + begin, bytes_of(buffer));
  for (auto i = first; i < last; ++i) {
    auto const& entry = header_.entries[i];
    out[i] = spi::tensor_from_storage(buffer.storage(), entry.begin - begin, entry.shape, entry.dtype);
    if (checked_) compare(i, checksum(out[i].bytes()));
  }
}

std::vector<Tensor> StateImage::read_tensors() const {
  std::vector<Tensor> tensors(header_.entries.size());
  bool const in_memory = source_->memory() != nullptr;
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < tensors.size(); i = in_memory ? i + 1 : group_end(i)) begins.push_back(i);
  begins.push_back(tensors.size());
  auto const shared_bytes = source_->wants_one_reader() || in_memory ? 0 : header_.data_bytes;
  parallel_for(begins.size() - 1, shared_bytes, [&](std::size_t group) {
    auto const first = begins[group];
    auto const last = begins[group + 1];
    if (last == first + 1) {
      tensors[first] = read_one(first);
    } else {
      read_group(first, last, tensors);
    }
  });
  return tensors;
}

}  // namespace crossrank::codec
