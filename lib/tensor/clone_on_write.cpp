#include <crossrank/tensor/clone_on_write.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <crossrank/spi/mapped_storage.hpp>

#include "lib/core/no_destructor.hpp"
#include "lib/platform/files/file_mapping.hpp"

namespace crossrank {

namespace spi {

MappedStorage::~MappedStorage() = default;

}  // namespace spi

namespace {

using platform::FileMapping;

// The faults of a mapping take as long as a copy of about so many bytes.
constexpr std::size_t least_bytes = std::size_t{64} << 10;

/// A second mapping of a storage's pages. Each byte is given away once, so that no two tensors share it.
class PrivateMapping {
 public:
  /// Maps `bytes` bytes of a storage from `begin` on.
  PrivateMapping(std::shared_ptr<spi::Storage> origin, spi::Backing const& backing, std::size_t begin,
                 std::size_t bytes)
      : origin_(std::move(origin)),
        begin_(begin),
        mapping_(backing.descriptor, backing.offset + begin, bytes, FileMapping::Access::copy_on_write) {}

  [[nodiscard]] bool is_mapped() const noexcept { return mapping_.is_mapped(); }
  /// Gives away bytes of the storage. Returns null if some of them were given away before.
  [[nodiscard]] std::byte* take(std::size_t begin, std::size_t bytes) {
    auto const after = taken_.upper_bound(begin);
    if (after != taken_.end() && after->first < begin + bytes) return nullptr;
    if (after != taken_.begin() && std::prev(after)->second > begin) return nullptr;
    taken_.emplace_hint(after, begin, begin + bytes);
    return mapping_.data() + (begin - begin_);
  }

 private:
  std::shared_ptr<spi::Storage> origin_;  ///< keeps the owner from using the shared pages for something else
  std::size_t begin_;
  FileMapping mapping_;
  std::map<std::size_t, std::size_t> taken_{};  ///< the ends of the ranges that were given away, by their begins
};

/// The newest mapping of each storage. One mapping serves all tensors of a file, because a process may have only some
/// 65,000 (`vm.max_map_count`), and large models have more tensors.
class PrivateMappings {
 public:
  struct Bytes {
    std::shared_ptr<PrivateMapping> owner{};
    std::byte* data = nullptr;  ///< null if the system refuses the mapping
  };
  /// Returns bytes of a storage that nobody else has.
  [[nodiscard]] Bytes take(std::shared_ptr<spi::Storage> const& origin, spi::Backing const& backing, std::size_t begin,
                           std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    if (newest_.size() >= sweep_at_) {
      std::erase_if(newest_, [](auto const& entry) { return entry.second.expired(); });
      sweep_at_ = 2 * newest_.size() + 16;
    }
    if (auto const known = newest_[origin.get()].lock()) {
      if (auto* const data = known->take(begin, bytes)) return {known, data};
    }
    auto made = std::make_shared<PrivateMapping>(origin, backing, 0, origin->size_bytes());
    // The system may refuse as much at once.
    if (!made->is_mapped()) made = std::make_shared<PrivateMapping>(origin, backing, begin, bytes);
    if (!made->is_mapped()) return {};
    newest_[origin.get()] = made;
    return {made, made->take(begin, bytes)};
  }

 private:
  std::mutex mutex_;
  std::map<spi::Storage*, std::weak_ptr<PrivateMapping>> newest_{};
  std::size_t sweep_at_ = 16;
};

/// The bytes of one tensor in such a mapping.
class PrivateBytes final : public spi::Storage {
 public:
  PrivateBytes(PrivateMappings::Bytes bytes, std::size_t size) : bytes_(std::move(bytes)), size_(size) {}
  ~PrivateBytes() override { platform::drop_pages(bytes_.data, size_); }
  PrivateBytes(PrivateBytes const&) = delete;
  PrivateBytes& operator=(PrivateBytes const&) = delete;
  [[nodiscard]] std::byte* data() noexcept override { return bytes_.data; }
  [[nodiscard]] std::size_t size_bytes() const noexcept override { return size_; }

 private:
  PrivateMappings::Bytes bytes_;
  std::size_t size_;
};

}  // namespace

Tensor clone_on_write(Tensor const& tensor) {
  static NoDestructor<PrivateMappings> mappings;
  auto const* const mapped = dynamic_cast<spi::MappedStorage const*>(tensor.storage().get());
  if (mapped == nullptr || tensor.nbytes() < least_bytes) return tensor.clone();
  auto const backing = mapped->backing();
  auto const element = std::max<std::size_t>(bits_of(tensor.dtype()) / 8, 1);
  bool const is_aligned = (backing.offset + tensor.byte_offset()) % element == 0;
  if (backing.descriptor < 0 || !is_aligned) return tensor.clone();
  auto bytes = mappings.value.take(tensor.storage(), backing, tensor.byte_offset(), tensor.nbytes());
  if (bytes.data == nullptr) return tensor.clone();
  auto storage = std::make_shared<PrivateBytes>(std::move(bytes), tensor.nbytes());
  return spi::tensor_from_storage(std::move(storage), 0, tensor.shape(), tensor.dtype());
}

}  // namespace crossrank
