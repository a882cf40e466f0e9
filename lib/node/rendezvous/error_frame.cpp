#include "lib/node/rendezvous/error_frame.hpp"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "lib/core/error_record.hpp"
#include "lib/platform/files/io_error.hpp"

namespace crossrank::node {

void put_error(Frame& frame, Error const& error) {
  auto const space = std::as_writable_bytes(std::span(frame.text)).first(frame.text.size() - 1);
  auto const& info = error.info();
  // The reader knows its own operation.
  auto fields = fields_of(error.code(), info);
  fields.operation = {};
  fields.details = {};
  frame.error_bytes = static_cast<std::uint32_t>(encode_error(fields, space));
}

Error error_in(Frame const& frame, NodeOptions const& options) {
  auto const bytes = std::min<std::size_t>(frame.error_bytes, frame.text.size());
  auto [code, info] = decode_error(std::as_bytes(std::span(frame.text)).first(bytes));
  std::erase_if(info.failed_ranks, [](int rank) { return rank >= max_ranks; });
  info.operation = "connect";
  info.rank = options.rank;
  info.world_size = options.ranks;
  info.group_usable = false;
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
  } catch (CancelledError const&) {  // the wait hook ended the wait
    info.message = "rank " + std::to_string(options.rank) + " was interrupted while it waited for the other ranks";
    return {ErrorCode::peer_lost, std::move(info)};
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
