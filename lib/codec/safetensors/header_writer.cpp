#include "lib/codec/safetensors/header_writer.hpp"

#include <cstring>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/io/limits.hpp"
#include "lib/core/round_up.hpp"

namespace crossrank::codec {
namespace {

constexpr std::size_t length_field_bytes = 8;

}  // namespace

HeaderWriter::HeaderWriter(ControlEscapes escapes) : text_(length_field_bytes, '\0'), escapes_(escapes) {
  text_ += R"({"__metadata__":{)";
}

std::size_t HeaderWriter::add_metadata(std::string_view key, std::string_view value) {
  if (!std::exchange(first_, false)) text_ += ',';
  append_json_string(text_, key, escapes_);
  text_ += ':';
  auto const at = text_.size() + 1;
  append_json_string(text_, value, escapes_);
  return at;
}

void HeaderWriter::end_metadata() {
  if (std::exchange(in_metadata_, false)) text_ += '}';
}

void HeaderWriter::add_tensor(std::string_view name, Dtype dtype, Shape const& shape, std::uint64_t begin,
                              std::uint64_t end) {
  end_metadata();
  text_ += ',';
  append_json_string(text_, name, escapes_);
  text_ += R"(:{"dtype":")";
  text_ += name_of(dtype);
  text_ += R"(","shape":[)";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text_ += ',';
    text_ += std::to_string(shape[i]);
  }
  text_ += R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::string HeaderWriter::finish(std::size_t alignment) && {
  end_metadata();
  text_ += '}';
  text_.resize(round_up(text_.size(), alignment), ' ');
  std::uint64_t const length = text_.size() - length_field_bytes;
  if (length > max_header_bytes) {
    throw UsageError({.operation = "state image",
                      .message = "the header is larger than the safetensors format allows",
                      .expected = "at most " + std::to_string(max_header_bytes) + " bytes",
                      .got = std::to_string(length),
                      .hint = "write fewer tensors, or a smaller config"});
  }
  std::memcpy(text_.data(), &length, sizeof(length));
  return std::move(text_);
}

}  // namespace crossrank::codec
