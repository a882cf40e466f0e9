#include "tools/cli/session.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "collectives/connect/open_transport.hpp"
#include "lib/core/as_size.hpp"
#include "lib/core/environment.hpp"
#include "lib/core/text/terminal_text.hpp"
#include "lib/platform/memory_error.hpp"
#include "lib/platform/sigpipe_blocked.hpp"
#include "tools/cli/interrupt_handler.hpp"
#include "tools/launch/launcher.hpp"
#include "tools/cli/option_flags.hpp"
#include "tools/cli/warning_log.hpp"

namespace crossrank::tools {
namespace {

constexpr std::size_t max_details = 20;
// A rank that is asked to stop first completes its slice and removes its temporary files.
constexpr std::chrono::seconds grace{30};

/// Returns the error as one line of JSON.
std::string error_object(std::string const& command, Error const& error, int exit_code) {
  Json const answer{{"command", command},
                    {"ok", false},
                    {"exit_code", exit_code},
                    {"error", json_with_flags(error.to_json(), command)}};
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Returns the arguments of this process, with the program as an absolute path.
std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  char path[4096];
  auto const length = ::readlink("/proc/self/exe", path, sizeof path);
  if (arguments.empty()) {
    throw UnavailableError({.operation = "start ranks",
                            .message = "the arguments of this process cannot be read",
                            .resource = "/proc/self/cmdline",
                            .hint = "mount /proc, or use one process"});
  }
  if (length > 0 && length < static_cast<ssize_t>(sizeof path)) arguments.front().assign(path, as_size(length));
  return arguments;
}

char const* name_of(ProgressStyle style) {
  if (style == ProgressStyle::bar) return "bar";
  return style == ProgressStyle::lines ? "lines" : "none";
}

ProgressStyle progress_style_of(SessionOptions const& options) {
  if (options.progress != ProgressStyle::automatic) return options.progress;
  return ::isatty(STDERR_FILENO) == 1 ? ProgressStyle::bar : ProgressStyle::lines;
}

int run_processes(std::string const& command, SessionOptions const& options) {
  LaunchOptions launch_options{.command = "crossrank " + command,
                               .ranks = options.processes,
                               .grace = grace,
                               .prefix = false,
                               .raw = true,
                               .lost_code = exit_code_of(ErrorCode::peer_lost)};
  if (options.json) {
    launch_options.if_silent = [&](int exit_code, std::string const& sentence) {
      auto const text = sentence.empty() ? std::string("the ranks could not be started") : sentence;
      PeerLostError const error({.operation = command, .message = text, .group_usable = false});
      return error_object(command, error, exit_code);
    };
  }
  auto arguments = own_arguments();
  auto const operands = std::find(arguments.begin(), arguments.end(), "--");  // what follows is no option
  arguments.insert(operands, {"--progress", name_of(progress_style_of(options))});
  launch_options.program = std::move(arguments);
  return launch(launch_options);
}

void print_result(std::string const& command, SessionOptions const& options, CommandResult const& answer) {
  if (!options.json) {
    std::fputs(with_flags(answer.text, command).c_str(), stdout);
    return;
  }
  Json json{{"command", command}, {"ok", answer.exit_code == 0}, {"exit_code", answer.exit_code}};
  json.update(json_with_flags(answer.json, command));
  std::printf("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

/// Returns the error of work that a signal has stopped. 0: the signal has reached only other ranks yet.
CancelledError ended_by(int signal, Error const& stopped) {
  auto info = stopped.info();
  auto const* const name = ::sigabbrev_np(signal);
  info.message = "ended by a signal";
  if (signal != 0) info.message = "ended by signal " + std::to_string(signal);
  if (name != nullptr) info.message += std::string(" (SIG") + name + ")";
  return CancelledError(std::move(info));
}

/// Whether a process connects to the other ranks that a launcher has announced.
enum class Peers : std::uint8_t { connect, none };

/// Connects this process to the other ranks. MPI, which connects hosts, is in a plugin of the shared library. The
/// command contains the library, so it cannot load the plugin, and all its ranks must be on one host.
Collective join(std::string const& command, Peers peers) {
  if (peers == Peers::none) return connect({.backend = "fake", .rank = 0, .world_size = 1});
  auto const job = describe_job({}, environment());
  if (job.several_nodes || job.unknown_size) {
    throw UnavailableError({.operation = command,
                            .message = "this command connects only ranks of one host",
                            .expected = "all ranks on this host",
                            .got = job.unknown_size ? "an unknown number of ranks"
                                                    : std::to_string(job.world_size) + " ranks on several hosts",
                            .hint =
                                "start it on one host; on several hosts, `crossrank plan` divides a merge into parts "
                                "that need no connection",
                            .rank = job.rank,
                            .world_size = job.world_size,
                            .group_usable = false});
  }
  return connect({.backend = job.world_size > 1 ? "shm" : "fake"});
}

/// Runs the work of one rank. Rank 0 reports the result.
int run_rank(std::string const& command, SessionOptions const& options,
             std::function<CommandResult(Session const&)> const& work, Peers peers) {
  bool const is_first = peers == Peers::none || environment().rank == 0;
  bool joined = false;
  bool speaks = true;  // rank 0 cannot report a start in which it has no part
  InterruptHandler interrupts;
  // SIGPIPE would end the process before it has removed its files.
  std::optional<platform::SigpipeBlocked> no_sigpipe(std::in_place);
  ProgressLine progress("crossrank " + command, is_first ? progress_style_of(options) : ProgressStyle::none,
                        [&interrupts] { interrupts.stop(SIGPIPE); });
  WarningLog const warnings(command, progress_style_of(options));
  try {
    auto const world = join(command, peers);
    joined = true;
    speaks = world.rank() == 0;
    interrupts.begin_work();
    auto answer = work({world, interrupts.token(), progress});
    if (options.json) answer.json["warnings"] = warnings.gather(world);
    progress.clear();
    no_sigpipe.reset();
    if (speaks) print_result(command, options, answer);
    return answer.exit_code;
  } catch (Error const& error) {
    progress.clear();
    // All ranks get the signal. While they connect, it ends the start with an error about one of them, which may come
    // before the signal.
    bool const lost = error.code() == ErrorCode::peer_lost;
    int const number = lost && !joined ? interrupts.await_signal() : interrupts.signal();
    bool const stopped = error.code() == ErrorCode::cancelled || (number != 0 && lost);
    speaks = speaks && (!stopped || is_first);
    int const code = stopped ? 128 + (number != 0 ? number : SIGINT) : exit_code_of(error.code());
    if (!speaks) return code;
    if (stopped) {
      print_error(command, options.json, ended_by(number, error), code);
    } else {
      print_error(command, options.json, error, code);
    }
    return code;
  }
}

/// Prints an error and returns its exit code.
int report_error(std::string const& command, SessionOptions const& options, Error const& error) {
  int const code = exit_code_of(error.code());
  print_error(command, options.json, error, code);
  return code;
}

/// Returns what `run` returns, or prints its error and returns the error's exit code.
int reported(std::string const& command, SessionOptions const& options, std::function<int()> const& run) {
  try {
    return run();
  } catch (Error const& error) {
    return report_error(command, options, error);
  } catch (std::bad_alloc const&) {
    return report_error(command, options, platform::memory_error(command));
  } catch (std::system_error const& error) {  // no thread or descriptor for this process
    ErrorInfo info{.operation = command, .message = error.what()};
    info.system_errno = error.code().value();
    info.hint = "raise the limits of processes, memory and open files (ulimit -u, -v and -n)";
    return report_error(command, options, IoError(std::move(info)));
  } catch (std::exception const& error) {
    return report_error(command, options, BackendError({.operation = command, .message = error.what()}));
  }
}

}  // namespace

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::format: return 1;
    case ErrorCode::usage:
    case ErrorCode::unavailable: return 2;
    case ErrorCode::io: return 3;
    default: return 4;
  }
}

std::string message_for_user(Error const& error, std::string_view command) {
  auto const& info = error.info();
  if (info.message.empty()) return with_flags(error.what(), command);
  auto text = info.message;
  if (!info.expected.empty()) text += ": expected " + info.expected + (info.got.empty() ? "" : ", got " + info.got);
  if (info.expected.empty() && !info.got.empty()) text += ": " + info.got;
  if (!info.resource.empty()) text += " (" + info.resource + ")";
  if (!info.system.empty()) text += ": " + info.system;
  text = terminal_text(text);
  if (!info.hint.empty()) text += "\n  " + terminal_text(info.hint);
  return with_flags(text, command);
}

void print_error(std::string const& command, bool json, Error const& error, int exit_code) {
  if (json) {
    std::fputs(error_object(command, error, exit_code).c_str(), stdout);
    return;
  }
  std::fprintf(stderr, "crossrank %s: %s\n", command.c_str(), message_for_user(error, command).c_str());
  auto const& details = error.info().details;
  if (details.size() < 2 || error.code() == ErrorCode::usage) return;
  for (std::size_t i = 0; i < details.size() && i < max_details; ++i)
    std::fprintf(stderr, "  %s\n", with_flags(terminal_text(details[i]), command).c_str());
  if (details.size() > max_details)
    std::fprintf(stderr, "  and %zu more; --json lists all\n", details.size() - max_details);
}

int run_session(std::string const& command, SessionOptions const& options,
                std::function<CommandResult(Session const&)> const& work) {
  return reported(command, options, [&] {
    auto const& launched = launched_environment();
    if (options.processes > 1 && launched.announces_several() && launched.world_size != options.processes) {
      throw UsageError({.operation = command,
                        .message = std::string(to_string(launched.launcher)) + " has already started the ranks",
                        .expected = "no -n, or -n " + std::to_string(launched.world_size),
                        .got = "-n " + std::to_string(options.processes),
                        .hint = "leave -n out"});
    }
    if (options.processes > 1 && !launched.announces_several()) return run_processes(command, options);
    return run_rank(command, options, work, Peers::connect);
  });
}

int run_alone(std::string const& command, SessionOptions const& options,
              std::function<CommandResult(Session const&)> const& work) {
  return reported(command, options, [&] { return run_rank(command, options, work, Peers::none); });
}

}  // namespace crossrank::tools
