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

#include <crossrank/dtype.hpp>
#include <crossrank/shape.hpp>

#include "lib/codec/torch/pickle/pickle_reader.hpp"
#include "lib/codec/io/strided_read.hpp"
#include "lib/codec/torch/zip/zip_reader.hpp"

namespace crossrank::codec {

/// What to do with the CRC of a record. torch writes them and never looks at them again.
enum class CrcPolicy : std::uint8_t {
  require,  ///< bytes that do not match are a `FormatError`
  warn,     ///< an event in the log
  ignore,   ///< not computed
};

struct TorchReadOptions {
  CrcPolicy crc = CrcPolicy::require;
  PickleAllowlist allowlist = torch_allowlist();
  PickleLimits limits{};
  std::vector<std::string> extra_globals{};  ///< names that the pickle may mention besides: "module.name"
};

/// One storage: a record of the archive. Tensors with the same one share their bytes.
struct TorchStorage {
  std::string key{};
  std::string_view cls{};  ///< "torch.FloatStorage"
  std::uint64_t bytes = 0;
  std::uint32_t record = 0;  ///< number of the archive's record
};

/// A tensor of the archive.
struct TorchTensor {
  Dtype dtype = Dtype::u8;
  Shape shape{};  ///< of FP4 pairs, in elements: twice torch's last dimension
  std::uint32_t storage = 0;
  StridedView view{};         ///< of that storage
  std::uint64_t nbytes = 0;   ///< of the row-major form
  std::string unsupported{};  ///< why it cannot be read; empty for all others
};

/// A file that `torch.save` wrote: its directory and its pickle are read and checked whole, nothing in it is called,
/// its data is read on request. From any thread.
class TorchArchive {
 public:
  /// `FormatError` with section ("zip directory", "zip record", "data.pkl", ...) and byte, also for what torch wrote
  /// before it wrote zip archives, and for TorchScript, with what to do; `IoError`.
  [[nodiscard]] static std::shared_ptr<TorchArchive const> open(std::shared_ptr<ByteSource const> source,
                                                                TorchReadOptions options = {});

  [[nodiscard]] std::string const& name() const noexcept { return zip_.source().name(); }
  [[nodiscard]] PickleValue root() const noexcept { return {*tree_, tree_->root}; }
  /// The tensor that `value` stands for, parameters and subclasses unwrapped; null when it is something else.
  [[nodiscard]] TorchTensor const* tensor(PickleValue value) const noexcept;
  [[nodiscard]] std::span<TorchStorage const> storages() const noexcept { return storages_; }
  /// Whether the policy wants the CRCs of the data looked at.
  [[nodiscard]] bool reads_checksums() const noexcept { return options_.crc != CrcPolicy::ignore; }
  [[nodiscard]] std::uint64_t bytes_on_disk() const noexcept { return zip_.source().size(); }

  /// Copies bytes `[offset, offset + out.size())` of the row-major form, verified as the policy says: the first read of
  /// a storage that is not all of it reads it twice.
  void read(TorchTensor const& tensor, std::uint64_t offset, std::span<std::byte> out) const;
  /// All bytes of a storage, verified as the policy says; `out` is as large.
  void read_storage(std::uint32_t storage, std::span<std::byte> out) const;
  /// Reads all of a tensor's storage once and compares its CRC, unless that was done; as the policy says.
  void verify(TorchTensor const& tensor) const { verify(tensor.storage); }
  /// The same by the storage's number.
  void verify(std::uint32_t storage) const;
  /// The CRC of a storage's record as the archive's directory has it; writers may leave it 0.
  [[nodiscard]] std::uint32_t recorded_crc(std::uint32_t storage) const { return record_of(storage).crc; }
  /// Throws the `FormatError` for a value of the pickle.
  [[noreturn]] void refuse(PickleValue value, std::string message, std::string hint = {}) const;

 private:
  TorchArchive(std::shared_ptr<ByteSource const> source, TorchReadOptions options);
  [[nodiscard]] std::vector<std::byte> read_checked(std::string_view record, std::uint64_t most) const;
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
  mutable std::unique_ptr<std::atomic<bool>[]> verified_ {};   ///< relaxed: a storage verified twice does no harm
};

}  // namespace crossrank::codec
