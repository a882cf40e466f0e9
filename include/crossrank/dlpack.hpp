#pragma once
#include <cstdint>
#include <memory>
#include <optional>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>

/// The C structs of DLPack 1.1, by which array libraries hand tensors to each other. That standard fixes the layout.
namespace crossrank::dlpack {

/// The kinds of memory that crossrank takes and gives.
enum DeviceType : std::int32_t {
  device_cpu = 1,        ///< host memory
  device_cuda = 2,       ///< memory of a CUDA device
  device_cuda_host = 3,  ///< page-locked host memory
};

/// The kinds of elements.
enum TypeCode : std::uint8_t {
  type_int = 0,
  type_uint = 1,
  type_float = 2,
  type_bfloat = 4,
  type_complex = 5,
  type_bool = 6,
  type_float8_e4m3fn = 10,
  type_float8_e4m3fnuz = 11,
  type_float8_e5m2 = 12,
  type_float8_e5m2fnuz = 13,
  type_float8_e8m0fnu = 14,
  type_float6_e2m3fn = 15,
  type_float6_e3m2fn = 16,
  type_float4_e2m1fn = 17,
};

/// Where the bytes are.
struct Device {
  std::int32_t type;   ///< a `DeviceType`, or a kind that crossrank does not know
  std::int32_t index;  ///< number of the device
};

/// The type of the elements.
struct DataType {
  std::uint8_t code;    ///< a `TypeCode`
  std::uint8_t bits;    ///< of one lane
  std::uint16_t lanes;  ///< 1, except for vectors
};

/// A tensor without an owner.
struct Tensor {
  void* data;                 ///< start of the memory; null for a tensor without elements
  Device device;              ///< where the memory is
  std::int32_t ndim;          ///< number of dimensions
  DataType dtype;             ///< type of the elements
  std::int64_t* shape;        ///< `ndim` sizes, in elements
  std::int64_t* strides;      ///< in elements; null: dense and row-major
  std::uint64_t byte_offset;  ///< from `data` to the first element
};

/// A tensor with its owner, before DLPack 1.0: the capsule "dltensor".
struct Managed {
  Tensor tensor;              ///< the borrowed view
  void* context;              ///< the exporter's own data
  void (*deleter)(Managed*);  ///< gives the tensor back; may be null
};

/// The version of the structs.
struct Version {
  std::uint32_t major;  ///< changes when the layout of the structs changes
  std::uint32_t minor;  ///< changes when values are added
};

inline constexpr std::uint64_t flag_read_only = 1;  ///< the bytes must not be written
inline constexpr std::uint64_t flag_copied = 2;     ///< the exporter made a copy for the consumer
inline constexpr std::uint64_t flag_padded = 4;     ///< each element narrower than a byte takes a byte

/// A tensor with its owner, since DLPack 1.0: the capsule "dltensor_versioned".
struct ManagedVersioned {
  Version version;                     ///< of the exporter
  void* context;                       ///< the exporter's own data
  void (*deleter)(ManagedVersioned*);  ///< gives the tensor back; may be null
  std::uint64_t flags;                 ///< any of the flags above
  Tensor tensor;                       ///< the borrowed view
};

static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 64 && sizeof(ManagedVersioned) == 80);

/// Ends the use of a tensor that another library owns.
struct Deleter {
  /// Calls the owner's deleter.
  void operator()(Managed* managed) const noexcept {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
  /// Calls the owner's deleter.
  void operator()(ManagedVersioned* managed) const noexcept {
    if (managed->deleter != nullptr) managed->deleter(managed);
  }
};
/// The only owner of an unversioned tensor.
using OwnedManaged = std::unique_ptr<Managed, Deleter>;
/// The only owner of a versioned tensor.
using OwnedVersioned = std::unique_ptr<ManagedVersioned, Deleter>;

/// Returns the dtype with this DLPack type, or nothing. Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::optional<Dtype> dtype_of(DataType type) noexcept;
/// Returns the DLPack type of a dtype. Local, free.
[[nodiscard]] CROSSRANK_EXPORT DataType type_of(Dtype dtype) noexcept;
/// Returns where DLPack says the bytes are: on the CPU, in page-locked memory, or on a GPU. Local, free.
[[nodiscard]] CROSSRANK_EXPORT Device device_of(crossrank::Tensor const& tensor) noexcept;
/// Returns DLPack's number of a CUDA stream, which a consumer passes to the exporter: 1 for the default stream, else
/// the `CUstream`. Local, free.
[[nodiscard]] CROSSRANK_EXPORT std::intptr_t stream_number(Stream const& stream) noexcept;

}  // namespace crossrank::dlpack

namespace crossrank {

/// Says whether an exchange by DLPack copies the bytes.
enum class DlpackCopy : std::uint8_t {
  if_needed,  ///< shares the memory if possible
  always,     ///< copies
  never,      ///< shares the memory, else `UsageError`
};

/// Options of `from_dlpack`.
struct DlpackImport {
  DlpackCopy copy = DlpackCopy::if_needed;  ///< a tensor that is not dense and row-major needs a copy
};

/// Options of `to_dlpack`.
struct DlpackExport {
  DlpackCopy copy = DlpackCopy::if_needed;  ///< `always` gives the consumer memory of its own, which may be written
  /// The consumer's stream for a tensor on a GPU, in DLPack's numbers: 1 is the legacy default stream, a number above 2
  /// a `CUstream`. It then waits for the current stream. -1 or empty: no stream waits. It must outlive the consumer's
  /// use of the tensor. `UsageError` for 2, the default stream of the thread.
  std::optional<std::intptr_t> stream{};
};

/// Makes a tensor from one that another library exports. Takes ownership of it, even if the call throws.
///
/// Local. Dense memory is shared without a copy. It is given back, by any thread, when the last view is gone and the
/// streams that used it have passed. Other memory is copied, on its device and in the order of the current stream. A
/// consumer on a GPU has passed `dlpack::stream_number(current_stream(device))` to the exporter before, so that the
/// exporter's work comes first. Memory with the read-only flag cannot be written.
///
/// `UsageError` for another major version, an unknown kind of device or type of elements, a null pointer, memory on
/// another device than the one it names, elements of less than a byte that are not dense, and as `DlpackImport` says.
/// When it copies on a GPU, errors as for `Tensor::to`. Follows `from_dlpack` of the Python array API standard.
[[nodiscard]] CROSSRANK_EXPORT Tensor from_dlpack(dlpack::OwnedVersioned foreign, DlpackImport const& options = {});
/// Does the same for an unversioned tensor (DLPack before 1.0), which cannot be read-only.
[[nodiscard]] CROSSRANK_EXPORT Tensor from_dlpack(dlpack::OwnedManaged foreign, DlpackImport const& options = {});

/// Exports a tensor for another library, which shares its memory until it calls the deleter, in any thread.
///
/// Local; no copy unless the options ask for one. A tensor whose bytes others hold gets the read-only flag.
/// `UsageError` for an undefined tensor, a stream for a tensor on the CPU, and the stream 0, which DLPack forbids;
/// errors as for `Stream::wait`. Follows `__dlpack__` of the Python array API standard.
[[nodiscard]] CROSSRANK_EXPORT dlpack::OwnedVersioned to_dlpack(Tensor const& tensor, DlpackExport const& options = {});
/// Does the same for a consumer of before DLPack 1.0. `UsageError` also for a tensor that must not be written, because
/// such a consumer cannot know; `DlpackCopy::always` helps.
[[nodiscard]] CROSSRANK_EXPORT dlpack::OwnedManaged to_dlpack_unversioned(Tensor const& tensor,
                                                                          DlpackExport const& options = {});

}  // namespace crossrank
