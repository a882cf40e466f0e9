#pragma once
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <sys/file.h>

#include "lib/platform/system.hpp"

namespace crossrank::test {

/// An operating system that refuses calls as filters and old kernels do. It also marks when this rank has bound the
/// rendezvous.
class LimitedSystem : public platform::System {
 public:
  bool refuse_sockets = false;  ///< with EPERM, as a seccomp filter does
  bool refuse_memfd = false;    ///< with ENOSYS, as a kernel before 3.17 does
  /// File that is created as soon as the other ranks can find this one. Empty: none.
  std::filesystem::path mark{};

  int socket(int domain, int type, int protocol) override {
    return refuse_sockets ? refuse(EPERM) : System::socket(domain, type, protocol);
  }
  int bind(int fd, sockaddr const* address, socklen_t bytes) override {
    int const result = System::bind(fd, address, bytes);
    if (result == 0) make_mark();
    return result;
  }
  int memfd_create(char const* name, unsigned flags) override {
    return refuse_memfd ? refuse(ENOSYS) : System::memfd_create(name, flags);
  }
  /// Other ranks do not sweep a named segment once it is locked.
  int flock(int fd, int operation) override {
    int const result = System::flock(fd, operation);
    if (result == 0 && (operation & LOCK_SH) != 0 && refuse_sockets) make_mark();
    return result;
  }

 private:
  static int refuse(int error) {
    errno = error;
    return -1;
  }
  void make_mark() const {
    if (!mark.empty()) std::ofstream(mark).put('\n');
  }
};

}  // namespace crossrank::test
