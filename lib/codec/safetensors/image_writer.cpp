#include "lib/codec/safetensors/image_writer.hpp"

#include <algorithm>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/as_size.hpp"
#include "lib/tensor/tensor_checks.hpp"
#include "lib/tensor/transfer/staged_read.hpp"

namespace crossrank::codec {
namespace {

// Small enough to stay in a core's cache between hashing and writing, large enough to make system calls rare.
constexpr std::size_t hashed_chunk_bytes = std::size_t{512} << 10;

[[noreturn]] void refuse_write(std::string message, std::string resource = {}) {
  throw UsageError({.operation = "state image", .message = std::move(message), .resource = std::move(resource)});
}

std::vector<ImageTensor> describe(StateDict const& weights) {
  std::vector<ImageTensor> tensors;
  tensors.reserve(weights.size());
  for (auto const& [name, tensor] : weights) {
    if (tensor.defined()) {
      require_readable(tensor, "state image");
      tensors.push_back({name, tensor.dtype(), tensor.shape(), false});
    } else {
      tensors.push_back({.name = name, .absent = true});
    }
  }
  return tensors;
}

}  // namespace

ImagePlan::ImagePlan(Json const& config, StateDict const& weights, ImageOptions const& options)
    : layout_(config, describe(weights), options) {
  std::vector<StateDict::value_type const*> entries;
  for (auto const& entry : weights) entries.push_back(&entry);
  for (auto const& extent : layout_.extents()) {
    auto const& [name, tensor] = *entries[extent.tensor];
    extents_.push_back({extent.offset, tensor, name});
  }
  known_.assign(extents_.size(), false);
  digests_.assign(extents_.size(), 0);
}

void ImagePlan::set_checksum(std::size_t extent, std::uint64_t digest) {
  if (extent >= extents_.size()) refuse_write("there is no such extent", std::to_string(extent));
  digests_[extent] = digest;
  known_[extent] = true;
}

std::span<std::byte const> ImagePlan::sealed_header() {
  if (auto const missing = std::find(known_.begin(), known_.end(), false); missing != known_.end()) {
    refuse_write("a tensor has no checksum yet", std::string(extents_[as_size(missing - known_.begin())].name));
  }
  header_ = layout_.sealed_header(digests_);
  return std::as_bytes(std::span(std::as_const(header_)));
}

void write_image(ImagePlan& plan, ByteSink& sink) {
  StreamingChecksum running;
  for (std::size_t i = 0; i < plan.extents().size(); ++i) {
    auto const& extent = plan.extents()[i];
    running.restart();
    auto offset = extent.offset;
    read_in_pieces(extent.tensor, [&](std::span<std::byte const> bytes) {
      for (std::size_t at = 0; at < bytes.size(); at += hashed_chunk_bytes) {
        auto const chunk = bytes.subspan(at, std::min(hashed_chunk_bytes, bytes.size() - at));
        running.update(chunk);
        sink.write_at(offset, chunk);
        offset += chunk.size();
      }
    });
    plan.set_checksum(i, running.digest());
  }
  sink.write_at(0, plan.sealed_header());
}

std::optional<std::size_t> find_header_checksum(std::span<std::byte const> header) noexcept {
  std::string_view const text(reinterpret_cast<char const*>(header.data()), header.size());
  // The writer puts the key last in the metadata and escapes quotes inside values, so the first such sequence in a
  // state image is the key itself. In any other file the checksum then does not match.
  static constexpr std::string_view key = R"("crossrank.header_checksum":")";
  auto const at = text.find(key);
  if (at == std::string_view::npos || text.size() - at - key.size() < checksum_digits) return std::nullopt;
  return at + key.size();
}

}  // namespace crossrank::codec
