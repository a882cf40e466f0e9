#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/state.hpp>

#include "lib/codec/safetensors/image_writer.hpp"
#include "lib/codec/safetensors/state_image.hpp"

namespace crossrank::codec {

using Bytes = std::vector<std::byte>;

/// Bytes of a test as a source without memory, like a file.
class BytesSource final : public ByteSource {
 public:
  explicit BytesSource(Bytes bytes, std::string name = "test bytes")
      : name_(std::move(name)), bytes_(std::move(bytes)) {}
  [[nodiscard]] std::string const& name() const noexcept override { return name_; }
  [[nodiscard]] std::uint64_t size() const noexcept override { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    auto const from = std::span(bytes_).subspan(offset, to.size());
    if (!to.empty()) std::memcpy(to.data(), from.data(), from.size());
  }

 private:
  std::string name_;
  Bytes bytes_;
};

inline Bytes to_bytes(std::string_view text) {
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

/// Returns a safetensors file: length, `header`, `data`.
inline Bytes file_of(std::string_view header, std::string_view data = {}) {
  std::uint64_t const length = header.size();
  std::string text(reinterpret_cast<char const*>(&length), sizeof(length));
  return to_bytes(text.append(header).append(data));
}

inline Bytes image_of(Json const& config, StateDict const& weights, ImageOptions const& options = {}) {
  ImagePlan plan(config, weights, options);
  Bytes bytes(plan.file_bytes());
  MemorySink sink(bytes);
  write_image(plan, sink);
  return bytes;
}

inline StateImage open_bytes(Bytes bytes, ReadOptions const& options = {}) {
  return StateImage::open(std::make_shared<BytesSource>(std::move(bytes)), options);
}

inline StateImage open_plain(Bytes bytes, Strictness strictness = Strictness::strict) {
  return open_bytes(std::move(bytes), {.kind = ImageKind::plain, .strictness = strictness});
}

inline Bytes read_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return to_bytes(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace crossrank::codec
