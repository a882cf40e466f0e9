// The version that this build of the library imitates.
#pragma once

namespace emulated::nccl {

/// As ncclGetVersion returns it: 22809 for 2.28.9.
int version();

}  // namespace emulated::nccl
