#include "tools/cli/warning_log.hpp"

#include <cstdio>
#include <mutex>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/json.hpp>

#include "lib/core/log.hpp"
#include "tools/cli/option_flags.hpp"

namespace crossrank::tools {
namespace {

// Enough for a reader; more would not help.
constexpr std::size_t max_texts = 1000;

}  // namespace

/// Shared, because a call of the sink may outlive the log.
struct WarningLog::Heard {
  std::mutex mutex{};
  std::set<std::string> texts{};
};

WarningLog::WarningLog(std::string const& command, ProgressStyle style) : heard_(std::make_shared<Heard>()) {
  auto const before =
      std::string(style == ProgressStyle::bar ? "\r\033[K" : "") + "crossrank " + command + ": warning: ";
  set_log_sink([heard = heard_, before, command](LogEvent const& event) {
    if (event.level != LogLevel::warning) return;
    auto const text = with_flags(text_of(event), command);
    std::lock_guard const lock(heard->mutex);
    if (heard->texts.size() >= max_texts || !heard->texts.insert(text).second) return;
    std::fprintf(stderr, "%s%s\n", before.c_str(), text.c_str());
  });
}

WarningLog::~WarningLog() { set_log_sink({}); }

std::vector<std::string> WarningLog::gather(Collective const& world) const {
  std::string mine;
  {
    std::lock_guard const lock(heard_->mutex);
    mine = Json(heard_->texts).dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::set<std::string> all;
  for (auto const& bytes : world.all_gatherv(std::as_bytes(std::span(mine)))) {
    for (auto const& text : Json::parse(std::string_view(reinterpret_cast<char const*>(bytes.data()), bytes.size())))
      all.insert(text.get<std::string>());
  }
  return {all.begin(), all.end()};
}

}  // namespace crossrank::tools
