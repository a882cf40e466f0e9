#include "lib/codec/safetensors/tensor_name.hpp"

#include "lib/codec/io/limits.hpp"
#include "lib/codec/json/json_text.hpp"

namespace crossrank::codec {

std::optional<std::string> find_name_error(std::string_view name) {
  if (find_bad_utf8(name) != std::string_view::npos) return "the name is not UTF-8";
  if (name.find('\0') != std::string_view::npos) return "the name contains NUL";
  if (name == "__metadata__") return "the format reserves this name";
  if (name.size() > max_name_bytes)
    return "the name has " + std::to_string(name.size()) + " bytes, more than " + std::to_string(max_name_bytes);
  return std::nullopt;
}

}  // namespace crossrank::codec
