#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/torch/pickle/pickle_reader.hpp"
#include "lib/codec/io/strided_read.hpp"
#include "lib/codec/torch/zip/zip_reader.hpp"

namespace crossrank::codec {

/// What to do with the CRC of a record. torch writes CRCs and never checks them.
enum class CrcPolicy : std::uint8_t {
  require,  ///< throws a `FormatError` when the CRC does not match
  warn,     ///< logs a warning
  ignore,   ///< does not compute it
};

struct TorchReadOptions {
  CrcPolicy crc = CrcPolicy::require;
  PickleAllowlist allowlist = torch_allowlist();
  PickleLimits limits{};
  std::vector<std::string> extra_globals{};  ///< more names that the pickle may contain: "module.name"
};

/// A storage, which is a record of the archive. Tensors with the same storage share its bytes.
struct TorchStorage {
  std::string key{};
  std::string_view cls{};  ///< "torch.FloatStorage"
  std::uint64_t bytes = 0;
  std::uint32_t record = 0;  ///< index of the archive's record
};

/// A tensor of the archive.
struct TorchTensor {
  Dtype dtype = Dtype::u8;
  Shape shape{};  ///< in elements; for FP4 pairs the last dimension is twice torch's
  std::uint32_t storage = 0;
  StridedView view{};         ///< view of that storage
  std::uint64_t nbytes = 0;   ///< size of the row-major form
  std::string unsupported{};  ///< why it cannot be read; else empty
};

/// A file that `torch.save` wrote. Opening reads and checks its directory and its pickle; nothing in it is called. Data
/// is read on request. May be used from any thread.
class TorchArchive {
 public:
  /// Opens an archive. `FormatError` with section ("zip directory", "zip record", "data.pkl", ...) and byte, also for
  /// TorchScript and for the formats of torch before zip archives, with a hint; `IoError`.
  [[nodiscard]] static std::shared_ptr<TorchArchive const> open(std::shared_ptr<ByteSource const> source,
                                                                TorchReadOptions options = {});

  [[nodiscard]] std::string const& name() const noexcept { return zip_.source().name(); }
  [[nodiscard]] PickleValue root() const noexcept { return {*tree_, tree_->root}; }
  /// Returns the tensor that `value` describes, with parameters and subclasses unwrapped; null for another value.
  [[nodiscard]] TorchTensor const* tensor(PickleValue value) const noexcept;
  [[nodiscard]] std::span<TorchStorage const> storages() const noexcept { return storages_; }
  /// Returns whether the policy checks the CRCs of the data.
  [[nodiscard]] bool reads_checksums() const noexcept { return options_.crc != CrcPolicy::ignore; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept { return zip_.source().size(); }

  /// Copies bytes `[offset, offset + out.size())` of the row-major form, verified according to the policy. The first
  /// partial read of a storage therefore reads it twice.
  void read(TorchTensor const& tensor, std::uint64_t offset, std::span<std::byte> out) const;
  /// Copies all bytes of a storage to `out`, which has the same size, verified according to the policy.
  void read_storage(std::uint32_t storage, std::span<std::byte> out) const;
  /// Verifies the CRC of a tensor's storage according to the policy, unless that was done before.
  void verify(TorchTensor const& tensor) const { verify(tensor.storage); }
  /// Verifies the CRC of a storage according to the policy, unless that was done before.
  void verify(std::uint32_t storage) const;
  /// Returns the CRC of a storage's record in the archive's directory. Writers may leave it 0.
  [[nodiscard]] std::uint32_t recorded_crc(std::uint32_t storage) const { return record_of(storage).crc; }
  /// Throws the `FormatError` for a value of the pickle.
  [[noreturn]] void refuse(PickleValue value, std::string message, std::string hint = {}) const;

 private:
  TorchArchive(std::shared_ptr<ByteSource const> source, TorchReadOptions options);
  [[nodiscard]] std::vector<std::byte> read_checked(std::string_view record, std::uint64_t max) const;
  void check_kind() const;
  void read_values();
  void take_storage(PickleValue persistent);
  void take_tensor(PickleValue call);
  [[nodiscard]] std::optional<std::uint32_t> storage_of(PickleValue value) const noexcept;
  [[nodiscard]] ZipRecord const& record_of(std::uint32_t storage) const noexcept {
    return zip_.records()[storages_[storage].record];
  }
  void apply_crc_policy(std::uint32_t storage, bool holds) const;

  ZipArchive zip_;
  TorchReadOptions options_;
  PickleOptions pickle_{};
  std::string prefix_{};
  std::shared_ptr<PickleTree const> tree_{};
  std::vector<TorchStorage> storages_{};
  std::unordered_map<std::string_view, std::uint32_t> by_key_{};
  std::unordered_map<PickleId, std::uint32_t> storage_ids_{};  ///< persistent values
  std::unordered_map<PickleId, TorchTensor> tensors_{};        ///< calls
  mutable std::unique_ptr<std::atomic<bool>[]> verified_ {};   ///< relaxed: verifying a storage twice is harmless
};

}  // namespace crossrank::codec
