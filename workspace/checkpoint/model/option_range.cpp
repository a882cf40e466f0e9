#include "workspace/checkpoint/model/option_range.hpp"

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {

void require_at_least(std::int64_t least, std::string const& operation, char const* option, std::int64_t given) {
  if (given >= least) return;
  throw UsageError({.operation = operation,
                    .message = "`" + std::string(option) + "` is too small",
                    .expected = std::to_string(least) + " or more",
                    .got = std::to_string(given)});
}

void require_config(std::string const& operation, Json const& config) {
  if (config.empty() || config.is_object()) return;
  throw UsageError({.operation = operation,
                    .message = "`config` is not a JSON object, so no program can read it as the config of a model",
                    .expected = "an object",
                    .got = config.type_name()});
}

}  // namespace crossrank::checkpoint
