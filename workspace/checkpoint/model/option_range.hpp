#pragma once
#include <cstdint>
#include <string>

#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

/// Throws `UsageError` if a number that the caller gave is less than `least`. `option` is its name.
void require_at_least(std::int64_t least, std::string const& operation, char const* option, std::int64_t given);

/// Throws `UsageError` if a number of threads is negative.
inline void require_thread_count(std::string const& operation, int threads) {
  require_at_least(0, operation, "threads", threads);
}

/// Throws `UsageError` if the config of a model is neither empty nor an object.
void require_config(std::string const& operation, Json const& config);

/// Returns the limit for an output file of a job with these options; 0 if everything goes into one file. Throws
/// `UsageError` if the options have a limit of 0, which no file has.
template <class Options>
[[nodiscard]] std::uint64_t max_file_bytes(std::string const& operation, Options const& options) {
  if (options.single_file) return 0;
  if (options.max_shard_bytes == 0) require_at_least(1, operation, "max_shard_bytes", 0);
  return options.max_shard_bytes;
}

}  // namespace crossrank::checkpoint
