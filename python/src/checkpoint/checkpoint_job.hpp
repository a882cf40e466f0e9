#pragma once
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <crossrank/checkpoint.hpp>
#include <crossrank/objects.hpp>

#include "errors.hpp"
#include "interpreter.hpp"
#include "json.hpp"
#include "module.hpp"
#include "options.hpp"
#include "waiting.hpp"

namespace crossrank::python {

namespace cp = checkpoint;

inline constexpr std::pair<char const*, cp::OutputFormat> formats[] = {{"safetensors", cp::OutputFormat::safetensors},
                                                                       {"torch", cp::OutputFormat::torch},
                                                                       {"images", cp::OutputFormat::images}};

inline constexpr std::pair<char const*, cp::ReadBack> read_backs[] = {{"all", cp::ReadBack::all},
                                                                      {"none", cp::ReadBack::none}};

inline constexpr std::pair<char const*, cp::FusedLayout> fused_layouts[] = {{"automatic", cp::FusedLayout::automatic},
                                                                            {"per_rank", cp::FusedLayout::per_rank},
                                                                            {"plain", cp::FusedLayout::plain}};

/// Returns what Python calls a value of this type.
template <class Value>
[[nodiscard]] constexpr std::string_view expected_value() {
  if constexpr (std::is_same_v<Value, bool>) return "bool";
  if constexpr (std::is_integral_v<Value>) return std::is_unsigned_v<Value> ? "int of at least 0" : "int";
  if constexpr (std::is_same_v<Value, std::string> || std::is_same_v<Value, std::optional<std::string>>) return "str";
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) return "a list of str";
  return {};
}

/// Reads the members of a dict of options. Refuses unknown ones, and lists those that there are.
class OptionReader {
 public:
  explicit OptionReader(nb::dict options) : left_(std::move(options)) {}

  template <class Value>
  void read(char const* name, Value& value) {
    auto const given = take(name);
    if (!given.is_valid() || given.is_none()) return;
    if (nb::try_cast(given, value)) return;
    std::string const expected(expected_value<Value>());
    if (std::is_integral_v<Value> && !std::is_same_v<Value, bool> && PyLong_Check(given.ptr()))
      refuse(name, "this option is out of range", expected, printable_text(given));
    refuse(name, "this option has the wrong type", expected, type_text(given));
  }
  void read(char const* name, std::filesystem::path& value) {
    auto const given = take(name);
    if (!given.is_valid() || given.is_none()) return;
    if (!nb::try_cast(given, value)) refuse(name, "this option is not a path", "str or os.PathLike", type_text(given));
  }
  void read(char const* name, Json& value) {
    auto const given = take(name);
    if (given.is_valid() && !given.is_none()) value = to_json(given);
  }
  template <class Value, std::size_t Count>
  void read(char const* name, std::pair<char const*, Value> const (&values)[Count], Value& value) {
    std::optional<std::string> given;
    read(name, given);
    if (given) value = named(values, name, *given);
  }
  /// Refuses what is left.
  void finish(char const* operation) const {
    if (left_.size() == 0) return;
    refuse(operation, "there is no such option", known_, printable_text(nb::list(left_.keys())[0]));
  }

 private:
  nb::object take(char const* name) {
    known_ += (known_.empty() ? "" : ", ") + std::string(name);
    if (!left_.contains(name)) return {};
    nb::object value = left_[name];
    nb::del(left_[name]);
    return value;
  }

  nb::dict left_;
  std::string known_;
};

/// Reads the options that all jobs that write a checkpoint have.
template <class Options>
void read_writing_options(OptionReader& reader, Options& options) {
  reader.read("force", options.force);
  reader.read("threads", options.threads);
  reader.read("read_back", read_backs, options.read_back);
  reader.read("format", formats, options.format);
}

/// Calls Python code from a call of the library, without the GIL. Keeps its exception in `raised`, and throws what the
/// other ranks are told of it.
template <class Call>
void run_callback(std::exception_ptr& raised, Call&& call) {
  AcquiredGil const gil;
  try {
    call();
  } catch (nb::python_error const& error) {
    raised = std::current_exception();
    throw CallbackError(error);
  }
}

/// Reports progress to a Python function. An exception of it that is an error is thrown as by `run_callback`; another
/// one, such as KeyboardInterrupt, stops the job.
inline void report_progress(nb::handle on_progress, cp::Progress const& progress, std::exception_ptr& raised,
                            std::stop_source& stop) {
  try {
    run_callback(raised, [&] {
      on_progress(progress.bytes_done, progress.bytes_total, nb::str(progress.stage.data(), progress.stage.size()));
    });
  } catch (CallbackError const& error) {
    if (!error.asks_to_stop()) throw;
    stop.request_stop();
  }
}

/// Reports progress to a Python function. The job ends when that function or a signal handler raises.
class Job {
 public:
  explicit Job(nb::object on_progress) : on_progress_(std::move(on_progress)) {}

  [[nodiscard]] std::stop_token token() const noexcept { return stop_.get_token(); }
  [[nodiscard]] std::function<void(cp::Progress const&)> reporter() {
    return [this](cp::Progress const& progress) { report(progress); };
  }
  /// Calls Python code from a call of the library, without the GIL. When the code raises, the job raises the same, and
  /// other ranks get a `RemoteError` with its type and text.
  template <class Call>
  void call_python(Call&& call) {
    run_callback(raised_, std::forward<Call>(call));
  }
  /// Runs the job of this process alone.
  template <class Work>
  auto run(Work&& work) {
    return run_until([] {}, std::forward<Work>(work));
  }
  /// Runs a job of all ranks. A signal stops it. If it does not end then, because it waits for another rank, the group
  /// is aborted.
  ///
  /// A signal may come too late to stop the job, and all ranks are told of an exception of a callback. If all ranks
  /// have the result or an error, the exception gets the attribute `group_usable`, because this rank is still in step
  /// with the others.
  template <class Work>
  auto run(Collective const& world, Work&& work) {
    bool in_step = false;
    bool insisted = false;
    auto const insist = [&] {
      if (world.world_size() == 1) return;
      insisted = true;
      abort_interrupted(world);
    };
    auto const observed = [&] {
      try {
        auto result = work();
        in_step = true;
        return result;
      } catch (Error const& error) {
        in_step = error.group_usable() && error.code() != ErrorCode::cancelled;
        throw;
      } catch (CallbackError const&) {  // all ranks have been told
        in_step = true;
        throw;
      }
    };
    try {
      return run_until(insist, observed);
    } catch (nb::python_error const& raised) {
      if (in_step && !insisted) mark_usable(raised);
      throw;
    }
  }

 private:
  template <class Work>
  auto run_until(std::function<void()> insist, Work&& work) {
    return run_waiting([this] { stop_.request_stop(); }, std::move(insist),
                       [&]() -> std::invoke_result_t<Work> {
                         try {
                           return work();
                         } catch (std::exception const&) {
                           if (raised_) std::rethrow_exception(raised_);
                           throw;
                         }
                       });
  }

  void report(cp::Progress const& progress) {
    poll_signals_now();
    if (on_progress_.is_none() || raised_) return;
    report_progress(on_progress_, progress, raised_, stop_);
  }

  nb::object on_progress_;
  std::stop_source stop_;
  std::exception_ptr raised_;
};

/// Runs `read`, which reads this rank's arguments, on all ranks. If it throws on one of them, its exception ends the
/// call there, and a `RemoteError` on the others. Ctrl-C aborts the group instead, because it cannot wait for the
/// others.
template <class Read>
void read_on_all_ranks(Collective const& world, char const* operation, Read const& read) {
  std::exception_ptr interrupted;
  auto const produce = [&] {
    try {
      run_python(read);
    } catch (RaisedException const& raised) {
      AcquiredGil const gil;
      if (raised.matches(PyExc_KeyboardInterrupt)) {
        interrupted = std::current_exception();
        abort_interrupted(world);
      }
      throw;
    }
    return detail::Bytes();
  };
  try {
    run_waiting(world, [&] { static_cast<void>(detail::all_gather_bytes(world, operation, produce)); });
  } catch (Error const&) {
    if (interrupted) std::rethrow_exception(interrupted);
    throw;
  }
}

/// Returns the result of a job as a dict.
inline nb::dict summary_to_python(cp::Summary const& summary) {
  nb::dict dict;
  dict["bytes"] = summary.bytes;
  dict["files"] = summary.files;
  dict["resumed_files"] = summary.resumed_files;
  dict["seconds"] = summary.elapsed.count();
  return dict;
}

}  // namespace crossrank::python
