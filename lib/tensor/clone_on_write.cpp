#include <crossrank/tensor/clone_on_write.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <crossrank/spi/mapped_storage.hpp>

#include "lib/platform/files/file_mapping.hpp"

namespace crossrank {

namespace spi {

MappedStorage::~MappedStorage() = default;

}  // namespace spi

namespace {

using platform::FileMapping;

// Mapping, the faults and unmapping take as long as a copy of about so many bytes.
constexpr std::size_t least_bytes = std::size_t{64} << 10;

/// A second mapping of a storage's pages.
class PrivateMapping final : public spi::Storage {
 public:
  PrivateMapping(std::shared_ptr<spi::Storage> origin, spi::Backing const& backing, std::size_t bytes)
      : origin_(std::move(origin)),
        mapping_(backing.descriptor, backing.offset, bytes, FileMapping::Access::copy_on_write) {}
  [[nodiscard]] bool is_mapped() const noexcept { return mapping_.is_mapped(); }
  [[nodiscard]] std::byte* data() noexcept override { return mapping_.data(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return mapping_.size(); }

 private:
  std::shared_ptr<spi::Storage> origin_;  ///< keeps the owner from using the shared pages for something else
  FileMapping mapping_;
};

}  // namespace

Tensor clone_on_write(Tensor const& tensor) {
  auto const* const mapped = dynamic_cast<spi::MappedStorage const*>(tensor.storage().get());
  if (mapped == nullptr || tensor.nbytes() < least_bytes) return tensor.clone();
  auto backing = mapped->backing();
  if (backing.descriptor < 0) return tensor.clone();
  backing.offset += tensor.byte_offset();
  auto storage = std::make_shared<PrivateMapping>(tensor.storage(), backing, tensor.nbytes());
  auto const element = std::max<std::size_t>(bits_of(tensor.dtype()) / 8, 1);
  bool const is_aligned = reinterpret_cast<std::uintptr_t>(storage->data()) % element == 0;
  if (!storage->is_mapped() || !is_aligned) return tensor.clone();
  return spi::tensor_from_storage(std::move(storage), 0, tensor.shape(), tensor.dtype());
}

}  // namespace crossrank
