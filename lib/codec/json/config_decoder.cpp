#include <cstdint>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/json/config_json.hpp"
#include "lib/codec/json/config_tag.hpp"
#include "lib/codec/json/json_builder.hpp"
#include "lib/codec/io/limits.hpp"

namespace crossrank::codec {
namespace {

class ConfigBuilder final : public JsonBuilder {
 public:
  explicit ConfigBuilder(ErrorInfo const& about)
      : JsonBuilder({.bytes = max_config_bytes, .values = max_config_nodes, .depth = max_config_depth},
                    RepeatedKey::refuse, about) {}

 private:
  void take_long_integer(double, std::string const&) override { refuse_long_integer(); }

  void finish_object(Json& object) override { resolve_mark(object); }

  void resolve_mark(Json& object) const {
    if (object.size() != 1) return;
    auto const& key = object.begin().key();
    auto const depth = tag_depth(key);
    if (depth == 0) return;
    Json held = std::move(object.begin().value());
    if (depth > 1) {
      auto const own_key = key.substr(1);
      object = Json::object();
      object[own_key] = std::move(held);
    } else if (key == "$float") {
      object = special_float(held);
    } else {
      object = binary_value(held);
    }
  }

  [[nodiscard]] Json special_float(Json const& held) const {
    auto const value = held.is_string() ? parse_special_float(held.get_ref<std::string const&>()) : std::nullopt;
    if (!value) refuse_here("the tag \"$float\" is malformed");
    return *value;
  }

  [[nodiscard]] Json binary_value(Json const& held) const {
    bool const with_subtype = held.is_array() && held.size() == 2 && held[1].is_number_unsigned();
    auto const& digits = with_subtype ? held[0] : held;
    auto bytes = digits.is_string() ? from_base64(digits.get_ref<std::string const&>()) : std::nullopt;
    if (!bytes) refuse_here("the tag \"$binary\" is malformed");
    if (with_subtype) return Json::binary(*std::move(bytes), held[1].get<std::uint64_t>());
    return Json::binary(*std::move(bytes));
  }
};

}  // namespace

Json decode_config(std::string_view text) {
  ErrorInfo const about{.operation = "config", .section = "config"};
  return ConfigBuilder(about).parse(text);
}

}  // namespace crossrank::codec
