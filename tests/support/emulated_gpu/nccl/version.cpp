#include "tests/support/emulated_gpu/nccl/version.hpp"

namespace emulated::nccl {

int version() { return EMULATED_NCCL_VERSION; }

}  // namespace emulated::nccl
