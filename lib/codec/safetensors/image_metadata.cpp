#include "lib/codec/safetensors/image_metadata.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

#include "lib/codec/json/config_json.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {
namespace {

bool decode_places(std::string_view text, std::size_t tensor_count, std::vector<std::uint32_t>& places) {
  std::vector<bool> seen(tensor_count);
  std::size_t present = 0;
  while (!text.empty()) {
    auto const word = text.substr(0, text.find(','));
    bool const last = word.size() == text.size();
    text.remove_prefix(last ? text.size() : word.size() + 1);
    if (!last && text.empty()) return false;
    if (word == "-") {
      places.push_back(absent_place);
      continue;
    }
    std::uint32_t place = 0;
    auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), place);
    if (error != std::errc{} || end != word.data() + word.size() || place >= tensor_count || seen[place]) return false;
    seen[place] = true;
    ++present;
    places.push_back(place);
  }
  return present == tensor_count;
}

bool decode_names(std::string_view text, std::vector<std::string>& names) {
  Json list;
  try {
    list = decode_config(text);
  } catch (FormatError const&) {
    return false;
  }
  if (!list.is_array()) return false;
  for (auto const& name : list) {
    if (!name.is_string() || name.get_ref<std::string const&>().size() > max_name_bytes) return false;
    names.push_back(name.get<std::string>());
  }
  return true;
}

}  // namespace

bool says_state_image(std::span<std::pair<std::string, std::string> const> metadata) noexcept {
  using namespace metadata_key;
  constexpr std::array only_in_images{version, writer, sequence,  config,         integers,
                                      order,   absent, checksums, header_checksum};
  return std::any_of(metadata.begin(), metadata.end(), [&](auto const& entry) {
    return std::find(only_in_images.begin(), only_in_images.end(), entry.first) != only_in_images.end();
  });
}

std::string encode_places(ImageOrder const& order) {
  std::string text;
  for (auto const place : order.places) {
    if (!text.empty()) text += ',';
    text += place == absent_place ? "-" : std::to_string(place);
  }
  return text;
}

std::string encode_absent_names(ImageOrder const& order) {
  std::string text = "[";
  for (auto const& name : order.absent_names) {
    if (text.size() > 1) text += ',';
    append_json_string(text, name);
  }
  return text + "]";
}

bool decode_order(std::string_view places, std::string_view absent_names, std::size_t tensor_count, ImageOrder& out) {
  if (!decode_places(places, tensor_count, out.places) || !decode_names(absent_names, out.absent_names)) return false;
  auto const absent = std::count(out.places.begin(), out.places.end(), absent_place);
  return absent == std::ssize(out.absent_names);
}

}  // namespace crossrank::codec
