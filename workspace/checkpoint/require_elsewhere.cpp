#include "workspace/checkpoint/require_elsewhere.hpp"

#include <system_error>

#include <crossrank/error.hpp>

namespace crossrank::checkpoint {

void require_elsewhere(std::string const& operation, std::filesystem::path const& in,
                       std::filesystem::path const& out) {
  namespace fs = std::filesystem;
  std::error_code error;
  auto const folder = fs::is_directory(in, error) ? in : (in.has_parent_path() ? in.parent_path() : fs::path("."));
  if (!fs::exists(out, error) || !fs::equivalent(folder, out, error)) return;
  throw UsageError({.operation = operation,
                    .message = "the output is the folder that the shards are in",
                    .resource = out.string(),
                    .remedy = "give another directory"});
}

}  // namespace crossrank::checkpoint
