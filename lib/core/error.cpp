#include <crossrank/error.hpp>

#include <algorithm>
#include <locale>
#include <sstream>
#include <utility>

#include "lib/core/text/terminal_text.hpp"

namespace crossrank {
namespace {

void append_clause(std::string& line, char const* separator, std::string const& text) {
  if (text.empty()) return;
  line += separator;
  line += text;
}

std::string one_line(ErrorInfo const& info) {
  std::string line = info.operation;
  append_clause(line, line.empty() ? "" : ": ", info.message);
  append_clause(line, ": expected ", info.expected);
  append_clause(line, info.expected.empty() ? ": got " : ", got ", info.got);
  if (info.rank >= 0) {
    line += " (rank " + std::to_string(info.rank);
    if (info.world_size > 0) line += " of " + std::to_string(info.world_size);
    append_clause(line, " in group ", info.group);
    line += ')';
  }
  append_clause(line, "; resource ", info.resource);
  append_clause(line, "; system: ", info.system);
  append_clause(line, "; hint: ", info.hint);
  for (auto& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return terminal_text(line);
}

ErrorInfo with_sorted_ranks(ErrorInfo info) {
  std::ranges::sort(info.failed_ranks);
  return info;
}

}  // namespace

char const* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::usage: return "usage";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::remote: return "remote";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::io: return "io";
    case ErrorCode::format: return "format";
    case ErrorCode::backend: return "backend";
    case ErrorCode::unavailable: return "unavailable";
  }
  return "unknown";
}

Error::Error(ErrorCode code, ErrorInfo info)
    : std::runtime_error(one_line(info)),
      code_(code),
      info_(std::make_shared<ErrorInfo const>(with_sorted_ranks(std::move(info)))) {}

ErrorCode Error::code() const noexcept { return code_; }
std::string const& Error::operation() const noexcept { return info_->operation; }
int Error::rank() const noexcept { return info_->rank; }
std::string const& Error::where() const noexcept { return info_->where; }
std::span<int const> Error::failed_ranks() const noexcept { return info_->failed_ranks; }
bool Error::group_usable() const noexcept { return info_->group_usable; }
ErrorInfo const& Error::info() const noexcept { return *info_; }

std::string Error::report() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // ranks without thousands separators
  out << to_string(code_) << ": " << what() << '\n';
  if (!info_->where.empty()) out << "  called at " << info_->where << '\n';
  if (!info_->section.empty()) out << "  in " << info_->section << " at byte " << info_->offset << '\n';
  if (!info_->remote_type.empty()) out << "  thrown there as " << terminal_text(info_->remote_type) << '\n';
  for (auto const& line : info_->details) out << "  " << terminal_text(line) << '\n';
  // A wrong argument says nothing about the state of the group, which may already be closed or lost.
  if (!info_->group.empty() && !(info_->group_usable && code_ == ErrorCode::usage))
    out << "  the group " << (info_->group_usable ? "can be used again" : "is dead") << '\n';
  if (!info_->hint.empty()) out << "  next: " << terminal_text(info_->hint) << '\n';
  return out.str();
}

Json Error::to_json() const {
  Json out;
  out["code"] = to_string(code_);
  out["what"] = what();
  auto const put = [&out](char const* key, std::string const& text) {
    if (!text.empty()) out[key] = text;
  };
  put("operation", info_->operation);
  put("message", info_->message);
  put("expected", info_->expected);
  put("got", info_->got);
  put("resource", info_->resource);
  put("system", info_->system);
  put("hint", info_->hint);
  put("group", info_->group);
  put("where", info_->where);
  put("remote_type", info_->remote_type);
  put("section", info_->section);
  if (!info_->section.empty()) out["offset"] = info_->offset;
  if (info_->system_errno != 0) out["errno"] = info_->system_errno;
  if (info_->rank >= 0) {
    out["rank"] = info_->rank;
    out["world_size"] = info_->world_size;
  }
  out["failed_ranks"] = info_->failed_ranks;
  if (!info_->group.empty()) out["group_usable"] = info_->group_usable;
  out["details"] = info_->details;
  // A file name or a peer's text may not be UTF-8, which JSON cannot hold.
  return Json::parse(out.dump(-1, ' ', false, Json::error_handler_t::replace));
}

UsageError::UsageError(ErrorInfo info) : Error(ErrorCode::usage, std::move(info)) {}
MismatchError::MismatchError(ErrorInfo info) : Error(ErrorCode::mismatch, std::move(info)) {}
TimeoutError::TimeoutError(ErrorInfo info) : Error(ErrorCode::timeout, std::move(info)) {}
PeerLostError::PeerLostError(ErrorInfo info) : Error(ErrorCode::peer_lost, std::move(info)) {}
RemoteError::RemoteError(ErrorInfo info) : Error(ErrorCode::remote, std::move(info)) {}
CancelledError::CancelledError(ErrorInfo info) : Error(ErrorCode::cancelled, std::move(info)) {}
IoError::IoError(ErrorInfo info) : Error(ErrorCode::io, std::move(info)) {}
FormatError::FormatError(ErrorInfo info) : Error(ErrorCode::format, std::move(info)) {}
BackendError::BackendError(ErrorInfo info) : Error(ErrorCode::backend, std::move(info)) {}
UnavailableError::UnavailableError(ErrorInfo info) : Error(ErrorCode::unavailable, std::move(info)) {}

std::string const& RemoteError::remote_type() const noexcept { return info().remote_type; }
int IoError::system_errno() const noexcept { return info().system_errno; }
std::string const& FormatError::section() const noexcept { return info().section; }
std::uint64_t FormatError::offset() const noexcept { return info().offset; }

void throw_error(ErrorCode code, ErrorInfo info) {
  switch (code) {
    case ErrorCode::usage: throw UsageError(std::move(info));
    case ErrorCode::mismatch: throw MismatchError(std::move(info));
    case ErrorCode::timeout: throw TimeoutError(std::move(info));
    case ErrorCode::peer_lost: throw PeerLostError(std::move(info));
    case ErrorCode::remote: throw RemoteError(std::move(info));
    case ErrorCode::cancelled: throw CancelledError(std::move(info));
    case ErrorCode::io: throw IoError(std::move(info));
    case ErrorCode::format: throw FormatError(std::move(info));
    case ErrorCode::backend: throw BackendError(std::move(info));
    case ErrorCode::unavailable: throw UnavailableError(std::move(info));
  }
  throw Error(code, std::move(info));
}

}  // namespace crossrank
