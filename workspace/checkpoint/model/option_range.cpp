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

}  // namespace crossrank::checkpoint
