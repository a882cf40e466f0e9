#pragma once
#include <string>
#include <vector>

#include "collectives/nccl/nccl_api.hpp"

namespace crossrank::nccl {

/// The NCCL of this process.
struct NcclLibrary {
  std::string path{};  ///< file that was opened
  int version = 0;     ///< 10,000 * major + 100 * minor + patch
  api::Functions functions{};
  std::vector<std::string> missing{};  ///< optional functions that the library lacks, and their use
};

/// Opens NCCL at the first call. `UnavailableError` without NCCL or with one that is too old, again at each call.
[[nodiscard]] NcclLibrary const& nccl_library();
/// As `nccl::prefer_library`.
void prefer_nccl_library(std::string path);

/// Returns "2.28.9".
[[nodiscard]] std::string version_text(int version);

/// Throws `BackendError` with NCCL's texts. `function` is NCCL's function, `operation` the library's.
[[noreturn]] void throw_nccl_error(api::Functions const& functions, api::Result result, char const* function,
                                   char const* operation);

}  // namespace crossrank::nccl
