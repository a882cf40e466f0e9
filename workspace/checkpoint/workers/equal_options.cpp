#include "workspace/checkpoint/workers/equal_options.hpp"

#include <algorithm>
#include <span>
#include <string_view>

#include <crossrank/error.hpp>
#include <crossrank/json.hpp>

namespace crossrank::checkpoint {

std::string option_text(bool value) { return value ? "true" : "false"; }

std::string option_text(OutputFormat format) {
  switch (format) {
    case OutputFormat::safetensors: return "safetensors";
    case OutputFormat::torch: return "torch";
    case OutputFormat::images: return "images";
  }
  return std::to_string(static_cast<int>(format));
}

std::string option_text(ReadBack read_back) { return read_back == ReadBack::all ? "all" : "none"; }

void require_equal_options(Collective const& world, std::string const& operation, NamedOptions const& options) {
  auto named = options;
  named.insert(named.begin(), {"operation", operation});
  auto const text = Json(named).dump(-1, ' ', false, Json::error_handler_t::replace);
  auto const all = world.all_gatherv(std::as_bytes(std::span(text)));
  auto const read = [&](std::vector<std::byte> const& bytes) -> NamedOptions {
    try {
      return Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size()))
          .get<NamedOptions>();
    } catch (Json::exception const&) {
      return {{"operation", "another operation"}};
    }
  };
  auto const first = read(all.front());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    auto const other = read(all[rank]);
    // Equal operations have the same options. Lists that end alike come from calls that send no options.
    auto const [expected, got] = std::mismatch(first.begin(), first.end(), other.begin(), other.end());
    bool const both = expected != first.end() && got != other.end();
    throw MismatchError({.operation = operation,
                         .message = "ranks 0 and " + std::to_string(rank) + " pass different values of `" +
                                    (both ? expected->first : "operation") + "`",
                         .expected = both ? expected->second : operation,
                         .got = both ? got->second : "another operation",
                         .hint = "pass the same value on all ranks",
                         .rank = world.rank(),
                         .world_size = world.world_size(),
                         .failed_ranks = {static_cast<int>(rank)}});
  }
}

}  // namespace crossrank::checkpoint
