#include "lib/codec/json/json_document.hpp"

namespace crossrank::codec {

Json parse_json(std::string_view text, JsonDocumentOptions const& options) {
  return JsonBuilder(options.limits, options.repeated_key, options.about).parse(text);
}

}  // namespace crossrank::codec
