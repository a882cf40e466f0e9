#pragma once
#include <string>

namespace crossrank {

/// Names the file to open, and the texts of errors about it.
struct VendorLibraryRequest {
  std::string chosen{};           ///< file that the setting names; empty when it is not set
  std::string preferred{};        ///< file to open before the system's; empty for none
  char const* setting = "";       ///< the setting: "CROSSRANK_CUDA_LIBRARY"
  char const* name = "";          ///< name of the shared object: "libcuda.so.1"
  char const* what = "";          ///< "the NVIDIA driver"
  char const* installation = "";  ///< what to install, for the hint
};

/// A vendor's shared library, opened at run time. It is never closed, because its threads may be running.
///
/// Its symbols stay local to it, so that a second copy in the process, such as PyTorch's, does no harm.
class VendorLibrary {
 public:
  /// Opens the file that the setting names, else the library that the process has loaded already, else the preferred
  /// file, else the system's.
  /// `UnavailableError` that says what was tried.
  explicit VendorLibrary(VendorLibraryRequest const& request);

  /// Returns the address of a symbol, or null.
  [[nodiscard]] void* find(char const* symbol) const noexcept;
  /// Returns the file.
  [[nodiscard]] std::string const& path() const noexcept { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_{};
};

}  // namespace crossrank
