// Runs a command, measures its time and its largest process, and appends a row to a result file.
//
// Usage: bench_timed --out FILE --path P --who W --variant V --ranks N --bytes B [--cold DIR | --warm DIR]... --
// COMMAND...
//
// Before the clock starts, it flushes dirty pages to disk, and drops the files from the page cache or reads them into
// it.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/harness/harness.hpp"

namespace bench = crossrank::bench;
namespace fs = std::filesystem;

namespace {

class Descriptor {
 public:
  Descriptor(fs::path const& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  [[nodiscard]] int get() const noexcept { return fd_; }

 private:
  int fd_;
};

std::vector<fs::path> files_in(fs::path const& folder) {
  std::vector<fs::path> files;
  for (auto const& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

void read_whole(fs::path const& file) {
  Descriptor const in(file, O_RDONLY);
  std::vector<char> block(std::size_t{4} << 20);
  while (::read(in.get(), block.data(), block.size()) > 0) {
  }
}

/// Drops the files from the page cache: the whole cache if this user may do so, file by file otherwise. Returns the
/// method.
char const* make_cold(fs::path const& folder) {
  Descriptor const all("/proc/sys/vm/drop_caches", O_WRONLY);
  if (all.get() >= 0 && ::write(all.get(), "1\n", 2) == 2) return "drop_caches";
  for (auto const& file : files_in(folder)) {
    Descriptor const in(file, O_RDONLY);
    (void)::posix_fadvise(in.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
  return "POSIX_FADV_DONTNEED";
}

struct Job {
  bench::Row row{};
  std::string out{};
  std::vector<std::string> cold{};
  std::vector<std::string> warm{};
  std::vector<char*> command{};
};

Job parse(int argc, char** argv) {
  Job job;
  int at = 1;
  for (; at + 1 < argc && std::string_view(argv[at]) != "--"; at += 2) {
    std::string_view const key = argv[at];
    std::string const value = argv[at + 1];
    if (key == "--out") {
      job.out = value;
    } else if (key == "--path") {
      job.row.path = value;
    } else if (key == "--who") {
      job.row.who = value;
    } else if (key == "--variant") {
      job.row.variant = value;
    } else if (key == "--ranks") {
      job.row.ranks = std::atoi(value.c_str());
    } else if (key == "--reads") {
      job.row.reads = value == "1";
    } else if (key == "--bytes") {
      job.row.bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "--cold") {
      job.cold.push_back(value);
    } else if (key == "--warm") {
      job.warm.push_back(value);
    } else {
      throw std::runtime_error("unknown argument " + std::string(key));
    }
  }
  for (++at; at < argc; ++at) job.command.push_back(argv[at]);
  if (job.command.empty() || job.out.empty()) throw std::runtime_error("--out FILE and -- COMMAND are required");
  job.command.push_back(nullptr);
  return job;
}

int run(Job& job) {
  ::sync();
  for (auto const& folder : job.cold) job.row.system_call_source = make_cold(folder);
  for (auto const& folder : job.warm) {
    for (auto const& file : files_in(folder)) read_whole(file);
  }
  auto const begin = bench::microseconds_now();
  auto const child = ::fork();
  if (child < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    ::execvp(job.command.front(), job.command.data());
    std::fprintf(stderr, "%s: %s\n", job.command.front(), std::strerror(errno));
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error(std::string("waitpid: ") + std::strerror(errno));
  }
  auto const time = bench::microseconds_now() - begin;
  if (!WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  job.row.calls = 1;
  job.row.min_us = job.row.median_us = job.row.p99_us = time;
  job.row.peak_bytes = static_cast<double>(usage.ru_maxrss) * 1024.0;
  auto const seconds = [](timeval const& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  job.row.processor_us = 1e6 * (seconds(usage.ru_utime) + seconds(usage.ru_stime));
  bench::append(job.out, {job.row});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto job = parse(argc, argv);
    return run(job);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
}
