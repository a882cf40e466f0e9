#include "workspace/nfs/state_file_names.hpp"

#include <algorithm>
#include <limits>
#include <mutex>

#include <unistd.h>

#include <crossrank/error.hpp>

#include "lib/platform/files/atomic_file.hpp"
#include "lib/platform/random.hpp"

namespace crossrank::workspace {
namespace {

/// Makes the names of this process unique. A forked child draws a new number, because it would repeat its parent's
/// names.
struct Writer {
  std::mutex mutex{};
  pid_t owner = 0;
  std::uint64_t number = 0;
  std::uint64_t names_given = 0;
};

constinit Writer writer;

/// The caller must hold the mutex.
void draw_if_new_process() {
  if (writer.owner == ::getpid()) return;
  writer.number = platform::random_number("NFSWorkspace.write");
  writer.names_given = 0;
  writer.owner = ::getpid();
}

}  // namespace

std::optional<StateFileName> parse_temporary(std::string const& name) {
  return parse_state_file_name(platform::final_name_of_temporary(name));
}

std::string torch_file_name(int rank) { return "rank_" + std::to_string(rank) + "_state.pth"; }

RankFiles files_of_rank(std::vector<std::string> const& names, int rank) {
  RankFiles files;
  for (auto const& name : names) {
    if (auto const file = parse_state_file_name(name); file && file->rank == rank)
      (file->of_gather ? files.of_gathers : files.states).push_back(*file);
    if (auto const temporary = parse_temporary(name); temporary && temporary->rank == rank)
      files.temporaries.push_back(name);
    files.torch = files.torch || name == torch_file_name(rank);
  }
  std::sort(files.states.begin(), files.states.end(),
            [](StateFileName const& a, StateFileName const& b) { return a.counter > b.counter; });
  return files;
}

std::vector<StateFileName> const& require_one_writer(RankFiles const& files, int rank, std::string const& directory,
                                                     std::string const& operation) {
  auto const refuse = [&](std::string const& first, std::string const& second, std::string hint) {
    throw FormatError(ErrorInfo{.operation = operation,
                                .message = "two writers left files for rank " + std::to_string(rank),
                                .expected = "files of one writer",
                                .got = first + " and " + second,
                                .resource = directory,
                                .hint = std::move(hint),
                                .section = "directory"});
  };
  if (files.states.empty()) return files.states;
  auto const& newest = files.states.front();
  for (auto const& other : files.states) {
    if (other.writer != newest.writer)
      refuse(newest.name(), other.name(), "use one directory per job; crossrank clean removes the files of dead jobs");
  }
  if (files.torch) refuse(newest.name(), torch_file_name(rank), "remove the file that you do not need");
  return files.states;
}

StateFileName next_state_file(int rank) {
  std::lock_guard const lock(writer.mutex);
  draw_if_new_process();
  if (writer.names_given > std::numeric_limits<std::uint32_t>::max()) {
    throw UnavailableError(
        ErrorInfo{.operation = "NFSWorkspace.write", .message = "this process has used all of its 2^32 file names"});
  }
  return {.rank = rank, .writer = writer.number, .counter = static_cast<std::uint32_t>(writer.names_given++)};
}

bool is_of_this_process(StateFileName const& file) noexcept {
  std::lock_guard const lock(writer.mutex);
  return writer.owner == ::getpid() && writer.number == file.writer;
}

void lock_state_file_names() { writer.mutex.lock(); }

void unlock_state_file_names() noexcept { writer.mutex.unlock(); }

}  // namespace crossrank::workspace
