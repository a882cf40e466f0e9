#include "lib/codec/json_document.hpp"

namespace crossrank::codec {

Json parse_json(std::string_view text, JsonDocumentOptions const& options) {
  return JsonTree(options.limits, options.repeated_key, options.about).parse(text);
}

}  // namespace crossrank::codec
