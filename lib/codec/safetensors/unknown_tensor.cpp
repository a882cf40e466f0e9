#include "lib/codec/safetensors/unknown_tensor.hpp"

#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/core/text/nearest_name.hpp"

namespace crossrank::codec {

void refuse_unknown_tensor(std::string operation, std::string_view name, std::span<HeaderEntry const> entries,
                           std::string resource) {
  std::vector<std::string> names;
  names.reserve(entries.size());
  for (auto const& entry : entries) names.emplace_back(entry.name);
  auto hint = did_you_mean(name, names);
  if (hint.empty()) hint = "`crossrank inspect` lists the tensors of a file";
  throw UsageError({.operation = std::move(operation),
                    .message = "there is no tensor \"" + std::string(name) + "\"",
                    .got = std::to_string(entries.size()) + " others",
                    .resource = std::move(resource),
                    .hint = std::move(hint)});
}

}  // namespace crossrank::codec
