#pragma once
#include <cstdint>

#include <crossrank/export.hpp>
#include <crossrank/spi/storage.hpp>

namespace crossrank::spi {

/// The file or shared memory behind a mapping.
struct Backing {
  int descriptor = -1;       ///< open for reading as long as the storage exists; -1: the pages cannot be mapped again
  std::uint64_t offset = 0;  ///< place of the storage's first byte in it
};

/// A storage that maps a file or shared memory, whose pages can be mapped again.
class CROSSRANK_EXPORT MappedStorage : public Storage {
 public:
  /// For derived classes.
  MappedStorage() = default;
  /// Frees the mapping.
  ~MappedStorage() override;
  MappedStorage(MappedStorage const&) = delete;
  MappedStorage& operator=(MappedStorage const&) = delete;
  /// Returns what the storage maps.
  [[nodiscard]] virtual Backing backing() const noexcept = 0;
};

}  // namespace crossrank::spi
