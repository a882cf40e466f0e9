#include "tests/tools/command_run.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/core/as_size.hpp"
#include "tests/support/timeouts.hpp"

namespace crossrank::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

[[noreturn]] void become_command(std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(argv.front(), argv.data());
  ::_exit(99);
}

void drain(int& fd, std::string& to) {
  std::array<char, 65536> buffer{};
  while (fd >= 0) {
    auto const got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      to.append(buffer.data(), as_size(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      ::close(fd);
      fd = -1;
    }
  }
}

}  // namespace

CommandRun::CommandRun(std::vector<std::string> const& arguments, Streams streams) {
  auto full = arguments;
  full.insert(full.begin(), CROSSRANK_COMMAND);
  if (streams == Streams::terminal) {
    pid_ = ::forkpty(&out_, nullptr, nullptr, nullptr);
    if (pid_ == 0) become_command(full);
    in_ = ::dup(out_);
  } else {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0 ||
        ::pipe2(err.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe2");
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::dup2(err[1], STDERR_FILENO);
      become_command(full);
    }
    for (int const fd : {in[0], out[1], err[1]}) ::close(fd);
    in_ = in[1];
    out_ = out[0];
    err_ = err[0];
    ::fcntl(err_, F_SETFL, O_NONBLOCK);
  }
  ::fcntl(out_, F_SETFL, O_NONBLOCK);
}

CommandRun::~CommandRun() {
  if (pid_ > 0) {
    // SIGTERM first: a launcher that is killed cannot end the processes of its ranks.
    ::kill(pid_, SIGTERM);
    ::kill(pid_, SIGCONT);
    ::kill(pid_, SIGTERM);
    (void)finish(milliseconds(3000));
  }
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (int const fd : {in_, out_, err_}) {
    if (fd >= 0) ::close(fd);
  }
}

void CommandRun::write(std::string_view text) {
  while (!text.empty()) {
    auto const wrote = ::write(in_, text.data(), text.size());
    if (wrote < 0) throw std::system_error(errno, std::generic_category(), "write");
    text.remove_prefix(as_size(wrote));
  }
}

void CommandRun::close_input() {
  if (in_ >= 0) ::close(in_);
  in_ = -1;
}

void CommandRun::signal(int number) const { ::kill(pid_, number); }

bool CommandRun::wait_for(std::string_view text, milliseconds limit) {
  auto const deadline = Clock::now() + scaled_timeout(limit);
  auto const seen = [&] {
    return end_.out.find(text) != std::string::npos || end_.err.find(text) != std::string::npos;
  };
  while (!seen() && Clock::now() < deadline && pump(milliseconds(20))) {
  }
  return seen();
}

bool CommandRun::wait_for_state(char state) const {
  auto const deadline = Clock::now() + step_timeout;
  while (process_state(pid_) != state) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

CommandEnd CommandRun::finish(milliseconds limit) {
  close_input();
  auto const deadline = Clock::now() + scaled_timeout(limit);
  while (Clock::now() < deadline && pump(milliseconds(20))) {
  }
  return end_;
}

bool CommandRun::pump(milliseconds slice) {
  if (pid_ < 0) return false;
  std::array<pollfd, 2> fds{pollfd{.fd = out_, .events = POLLIN, .revents = 0},
                            pollfd{.fd = err_, .events = POLLIN, .revents = 0}};
  ::poll(fds.data(), fds.size(), static_cast<int>(slice.count()));
  int status = 0;
  bool const ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
  drain(out_, end_.out);
  drain(err_, end_.err);
  if (!ended) return true;
  pid_ = -1;
  end_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  end_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return false;
}

CommandEnd run_command(std::vector<std::string> const& arguments, std::string_view input) {
  CommandRun run(arguments);
  run.write(input);
  return run.finish();
}

char process_state(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string const text{std::istreambuf_iterator<char>(in), {}};
  auto const name_end = text.rfind(')');
  return name_end == std::string::npos ? '-' : text.at(name_end + 2);
}

}  // namespace crossrank::test
