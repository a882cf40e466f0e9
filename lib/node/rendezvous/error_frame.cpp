#include "lib/node/rendezvous/error_frame.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "lib/platform/io_error.hpp"

namespace crossrank::node {
namespace {

struct Text {
  std::string ErrorInfo::*field;
  std::size_t most;
};
/// What travels, each with as much space as it may take.
constexpr std::array<Text, 6> texts{{{&ErrorInfo::message, 1400},
                                     {&ErrorInfo::expected, 300},
                                     {&ErrorInfo::got, 300},
                                     {&ErrorInfo::resource, 400},
                                     {&ErrorInfo::system, 300},
                                     {&ErrorInfo::hint, 700}}};
static_assert(1400 + 300 + 300 + 400 + 300 + 700 + texts.size() <= sizeof(Frame::text));

}  // namespace

void put_error(Frame& frame, Error const& error) {
  auto const& info = error.info();
  frame.error_code = static_cast<std::uint32_t>(error.code());
  frame.value = static_cast<std::uint64_t>(info.system_errno);
  frame.blamed.fill(0);
  for (int const rank : info.failed_ranks) {
    if (rank < 0 || rank >= max_ranks) continue;
    auto& byte = frame.blamed[static_cast<std::size_t>(rank) / 8];
    byte = static_cast<std::uint8_t>(byte | 1U << (static_cast<unsigned>(rank) % 8));
  }
  frame.text.fill('\0');
  std::size_t at = 0;
  for (auto const& text : texts) {
    auto const& value = info.*text.field;
    at += value.copy(frame.text.data() + at, std::min(text.most, std::strlen(value.c_str())));
    ++at;  // the zero between
  }
}

Error error_in(Frame const& frame, NodeOptions const& options) {
  ErrorInfo info{.operation = "connect", .rank = options.rank, .world_size = options.ranks, .group_usable = false};
  std::string_view const all(frame.text.data(), frame.text.size());
  std::size_t at = 0;
  for (auto const& text : texts) {
    auto const end = all.find('\0', at);
    if (end == std::string_view::npos) break;
    info.*text.field = std::string(all.substr(at, end - at));
    at = end + 1;
  }
  for (int rank = 0; rank < max_ranks; ++rank) {
    auto const byte = frame.blamed[static_cast<std::size_t>(rank) / 8];
    if ((byte >> (static_cast<unsigned>(rank) % 8) & 1U) != 0) info.failed_ranks.push_back(rank);
  }
  auto const last = static_cast<std::uint32_t>(ErrorCode::unavailable);
  auto const code = frame.error_code <= last ? static_cast<ErrorCode>(frame.error_code) : ErrorCode::backend;
  if (code == ErrorCode::io) info.system_errno = static_cast<int>(frame.value & 0xffff);
  return {code, std::move(info)};
}

void throw_as_own(Error const& error, NodeOptions const& options) {
  auto info = error.info();
  info.rank = options.rank;
  info.world_size = options.ranks;
  info.group_usable = false;
  throw_error(error.code(), std::move(info));
}

Error current_start_error(NodeOptions const& options) {
  ErrorInfo info{.operation = "connect",
                 .resource = options.key.text(),
                 .rank = options.rank,
                 .world_size = options.ranks,
                 .failed_ranks = {options.rank},
                 .group_usable = false};
  try {
    throw;
  } catch (Error const& e) {
    auto own = e.info();
    own.group_usable = false;
    if (!own.failed_ranks.empty()) return {e.code(), std::move(own)};
    auto const what = own.operation == "connect" || own.operation.empty() ? "" : own.operation + ": ";
    own.message = "rank " + std::to_string(options.rank) + " could not attach: " + what + own.message;
    own.operation = "connect";
    own.failed_ranks = {options.rank};
    return {e.code(), std::move(own)};
  } catch (std::bad_alloc const&) {
    info.message = "rank " + std::to_string(options.rank) + " has no memory left";
    info.system_errno = ENOMEM;
    info.system = platform::errno_text(ENOMEM);
    info.hint = "raise the memory limit (ulimit -v, or that of the container)";
  } catch (std::system_error const& e) {
    info.message = "rank " + std::to_string(options.rank) + " could not attach: " + e.what();
    info.system_errno = e.code().value();
    info.system = platform::errno_text(info.system_errno);
    info.hint = "raise the limits of processes and memory (ulimit -u, ulimit -v)";
  } catch (std::exception const& e) {
    info.message = "rank " + std::to_string(options.rank) + " could not attach: " + e.what();
  } catch (...) {
    info.message = "rank " + std::to_string(options.rank) + " could not attach: an exception of an unknown type";
  }
  return {ErrorCode::io, std::move(info)};
}

}  // namespace crossrank::node
