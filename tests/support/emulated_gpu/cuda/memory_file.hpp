// A memfd that is mapped in this process and that another process can open by its name. It has no name in any file
// system, so it goes with the last process that has it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace emulated {

/// Names a memfd of a living process.
struct FileName {
  pid_t process = 0;
  int descriptor = -1;
  std::uint64_t inode = 0;  // tells a descriptor that was used again
};

class MemoryFile {
 public:
  /// Makes a file of zeros. Null when the system refuses.
  static std::shared_ptr<MemoryFile> create(char const* label, std::size_t size);
  /// Opens a file of another process; null when it is gone.
  static std::shared_ptr<MemoryFile> open(FileName const& name);
  /// Takes a copy of a descriptor; null when it is not such a file.
  static std::shared_ptr<MemoryFile> adopt(int descriptor);

  MemoryFile(int descriptor, std::size_t size, std::byte* bytes)
      : descriptor_(descriptor), size_(size), bytes_(bytes) {}
  ~MemoryFile();
  MemoryFile(MemoryFile const&) = delete;
  MemoryFile& operator=(MemoryFile const&) = delete;

  std::byte* bytes() const { return bytes_; }
  std::size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  FileName name() const;

 private:
  static std::shared_ptr<MemoryFile> map(int descriptor);

  int descriptor_;
  std::size_t size_;
  std::byte* bytes_;
};

}  // namespace emulated
