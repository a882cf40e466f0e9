#include "tests/support/emulated_gpu/cuda/memory_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace emulated {
namespace {

constexpr int all_seals = F_SEAL_SHRINK | F_SEAL_GROW;

std::uint64_t inode_of(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::shared_ptr<MemoryFile> MemoryFile::map(int descriptor) {
  struct stat status {};
  void* bytes = MAP_FAILED;
  // The seals tell such a file from any other.
  if (::fcntl(descriptor, F_GET_SEALS) == all_seals && ::fstat(descriptor, &status) == 0) {
    auto const size = static_cast<std::size_t>(status.st_size);
    bytes = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (bytes == MAP_FAILED) {
    ::close(descriptor);
    return nullptr;
  }
  return std::make_shared<MemoryFile>(descriptor, static_cast<std::size_t>(status.st_size),
                                      static_cast<std::byte*>(bytes));
}

std::shared_ptr<MemoryFile> MemoryFile::create(char const* label, std::size_t size) {
  int const descriptor =
      ::memfd_create((std::string("emulated_gpu_") + label).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return nullptr;
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0 || ::fcntl(descriptor, F_ADD_SEALS, all_seals) != 0) {
    ::close(descriptor);
    return nullptr;
  }
  return map(descriptor);
}

std::shared_ptr<MemoryFile> MemoryFile::open(FileName const& name) {
  auto const path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  int const descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return nullptr;
  if (inode_of(descriptor) != name.inode) {
    ::close(descriptor);
    return nullptr;
  }
  return map(descriptor);
}

std::shared_ptr<MemoryFile> MemoryFile::adopt(int descriptor) {
  int const copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  return copy < 0 ? nullptr : map(copy);
}

MemoryFile::~MemoryFile() {
  ::munmap(bytes_, size_);
  ::close(descriptor_);
}

FileName MemoryFile::name() const { return {::getpid(), descriptor_, inode_of(descriptor_)}; }

}  // namespace emulated
