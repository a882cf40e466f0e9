#include "collectives/nccl/nccl_library.hpp"

#include <mutex>
#include <string>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/environment.hpp"
#include "lib/core/no_destructor.hpp"
#include "lib/device/function_binder.hpp"
#include "lib/device/opened_once.hpp"
#include "lib/device/vendor_library.hpp"

namespace crossrank::nccl {
namespace {

using api::Result;

constexpr char const* load_operation = "load NCCL";

void bind_functions(FunctionBinder& to, api::Functions& f) {
  to.required("ncclGetVersion", f.ncclGetVersion);
  to.required("ncclGetUniqueId", f.ncclGetUniqueId);
  to.required("ncclGetErrorString", f.ncclGetErrorString);
  to.required("ncclGetLastError", f.ncclGetLastError);
  to.required("ncclCommInitRankConfig", f.ncclCommInitRankConfig);
  to.required("ncclCommFinalize", f.ncclCommFinalize);
  to.required("ncclCommDestroy", f.ncclCommDestroy);
  to.required("ncclCommAbort", f.ncclCommAbort);
  to.required("ncclCommGetAsyncError", f.ncclCommGetAsyncError);
  to.required("ncclCommCount", f.ncclCommCount);
  to.required("ncclGroupStart", f.ncclGroupStart);
  to.required("ncclGroupEnd", f.ncclGroupEnd);
  to.required("ncclAllReduce", f.ncclAllReduce);
  to.required("ncclReduce", f.ncclReduce);
  to.required("ncclBroadcast", f.ncclBroadcast);
  to.required("ncclAllGather", f.ncclAllGather);
  to.required("ncclReduceScatter", f.ncclReduceScatter);
  to.required("ncclSend", f.ncclSend);
  to.required("ncclRecv", f.ncclRecv);
  to.optional("ncclAlltoAll", "all_to_all in one call", f.ncclAlltoAll);
  to.optional("ncclGather", "gather in one call", f.ncclGather);
  to.optional("ncclScatter", "scatter in one call", f.ncclScatter);
  constexpr auto const* buffers = "registered buffers";
  to.optional("ncclMemAlloc", buffers, f.ncclMemAlloc);
  to.optional("ncclMemFree", buffers, f.ncclMemFree);
  to.optional("ncclCommRegister", buffers, f.ncclCommRegister);
  to.optional("ncclCommDeregister", buffers, f.ncclCommDeregister);
  to.optional("ncclCommWindowRegister", "windows of registered buffers", f.ncclCommWindowRegister);
  to.optional("ncclCommWindowDeregister", "windows of registered buffers", f.ncclCommWindowDeregister);
}

/// The file of `prefer_nccl_library`.
class PreferredFile {
 public:
  void set(std::string path) {
    std::lock_guard const lock(mutex_);
    path_ = std::move(path);
  }
  [[nodiscard]] std::string get() {
    std::lock_guard const lock(mutex_);
    return path_;
  }

 private:
  std::mutex mutex_{};
  std::string path_{};
};

PreferredFile& preferred_file() {
  static NoDestructor<PreferredFile> file;
  return file.value;
}

NcclLibrary open() {
  VendorLibrary const file({.chosen = environment().nccl_library,
                            .preferred = preferred_file().get(),
                            .setting = "CROSSRANK_NCCL_LIBRARY",
                            .name = "libnccl.so.2",
                            .what = "NCCL",
                            .installation = "install NCCL (NVIDIA's package is libnccl2)"});
  NcclLibrary out;
  out.path = file.path();
  FunctionBinder binder(file);
  bind_functions(binder, out.functions);
  auto const& f = out.functions;
  bool const known = f.ncclGetVersion != nullptr && f.ncclGetVersion(&out.version) == Result::success;
  bool const is_old = known && out.version < api::oldest_version;
  if (!known || is_old || !binder.absent().empty()) {
    auto got = known ? "NCCL " + version_text(out.version) : "another library";
    if (known && !binder.absent().empty()) got += " without " + binder.absent().front();
    throw UnavailableError({.operation = load_operation,
                            .message = is_old ? "the library is too old" : "the library lacks functions of NCCL",
                            .expected = "NCCL " + version_text(api::oldest_version) + " or later",
                            .got = std::move(got),
                            .resource = out.path,
                            .hint = is_old ? "install a newer NCCL" : "install NVIDIA's NCCL",
                            .details = binder.absent()});
  }
  out.missing = binder.take_missing();
  return out;
}

constinit OpenedOnce<NcclLibrary> the_library;

}  // namespace

NcclLibrary const& nccl_library() { return the_library.get(open); }

void prefer_nccl_library(std::string path) { preferred_file().set(std::move(path)); }

std::string version_text(int version) {
  return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

void throw_nccl_error(api::Functions const& functions, Result result, char const* function, char const* operation) {
  std::string text = functions.ncclGetErrorString(result);
  auto const* const last = functions.ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text += std::string(": ") + last;
  throw BackendError({.operation = operation,
                      .message = std::string(function) + " failed",
                      .system = std::move(text),
                      .hint = "NCCL_DEBUG=INFO makes NCCL print what it does"});
}

}  // namespace crossrank::nccl
