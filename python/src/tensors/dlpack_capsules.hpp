#pragma once

/// The names that DLPack gives to Python's capsules.
namespace crossrank::python {

inline constexpr char const* capsule_name = "dltensor";
inline constexpr char const* used_capsule_name = "used_dltensor";
inline constexpr char const* versioned_capsule_name = "dltensor_versioned";
inline constexpr char const* used_versioned_capsule_name = "used_dltensor_versioned";

}  // namespace crossrank::python
