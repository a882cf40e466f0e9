#pragma once
#include <cstdint>

namespace crossrank::python::dlpack {

// The structs of DLPack 1.1, by which array libraries hand tensors to each other. The layout is fixed by that standard.

inline constexpr std::int32_t device_cpu = 1;

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

struct Device {
  std::int32_t type;
  std::int32_t index;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t flag_read_only = 1;
inline constexpr std::uint64_t flag_copied = 2;

struct ManagedVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(Tensor) == 48 && sizeof(Managed) == 64 && sizeof(ManagedVersioned) == 80);

inline constexpr char const* capsule = "dltensor";
inline constexpr char const* used_capsule = "used_dltensor";
inline constexpr char const* versioned_capsule = "dltensor_versioned";
inline constexpr char const* used_versioned_capsule = "used_dltensor_versioned";

}  // namespace crossrank::python::dlpack
