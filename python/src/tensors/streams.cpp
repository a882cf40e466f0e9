#include "tensors/streams.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <nanobind/stl/string.h>

#include <crossrank/cuda.hpp>
#include <crossrank/nccl.hpp>

#include "errors.hpp"
#include "module.hpp"
#include "tensors/tensor.hpp"
#include "tensors/torch_module.hpp"
#include "waiting.hpp"

namespace crossrank::python {
namespace {

/// CU_STREAM_LEGACY, another name of the default stream.
constexpr std::uintptr_t legacy_stream = 1;

/// The GPUs that calls of this process have used. Guarded by the GIL.
std::vector<Device>& used_gpus() {
  static std::vector<Device> gpus;
  return gpus;
}

/// The streams of `crossrank.stream` in this thread, the innermost last.
std::vector<Stream>& chosen_streams() {
  thread_local std::vector<Stream> streams;
  return streams;
}

std::optional<Stream> chosen_stream(Device device) {
  auto const& streams = chosen_streams();
  auto const found = std::find_if(streams.rbegin(), streams.rend(),
                                  [device](Stream const& stream) { return stream.device() == device; });
  return found == streams.rend() ? std::nullopt : std::optional(*found);
}

}  // namespace

constinit bool uses_gpus = false;

void follow_streams_of(Device device) {
  if (device.kind == Device::Kind::cpu) return;
  auto& gpus = used_gpus();
  if (std::find(gpus.begin(), gpus.end(), device) == gpus.end()) gpus.push_back(device);
  uses_gpus = true;
}

void follow_streams_of_results() {
  static bool follows = false;  // guarded by the GIL
  if (follows || !torch_uses_gpus()) return;
  follow_streams_of(default_device());
  follows = true;
}

std::vector<Stream> find_streams() {
  std::vector<Stream> streams;
  auto const& gpus = used_gpus();
  for (std::size_t i = 0; i < gpus.size(); ++i) {  // torch may release the GIL, and another thread add a GPU
    auto const device = gpus[i];
    auto stream = chosen_stream(device);
    if (!stream) stream = torch_stream(device);
    if (stream) streams.push_back(*std::move(stream));
  }
  return streams;
}

std::unique_ptr<StreamScope::Guards> StreamScope::guards_of(std::vector<Stream> const& streams) {
  auto guards = std::make_unique<Guards>();
  for (auto const& stream : streams) guards->emplace_back(stream);
  return guards;
}

void bind_streams(nb::module_& module) {
  module.def("push_stream", [](nb::handle device, std::uintptr_t native) {
    auto const gpu = device_from(device);
    if (gpu.kind == Device::Kind::cpu) refuse("stream", "the CPU has no streams", "a GPU", to_string(gpu));
    auto* const handle = native == legacy_stream ? nullptr : reinterpret_cast<void*>(native);
    chosen_streams().push_back(Stream::borrow(gpu, handle));
    follow_streams_of(gpu);
  });
  module.def("trim", [](nb::handle device) {
    auto const gpu = device_from(device);
    if (gpu.kind == Device::Kind::cpu) refuse("trim", "this is not a GPU", "a GPU", to_string(gpu));
    run_without_gil([&] { cuda::trim(gpu); });
  });
  module.def("pop_stream", [] { chosen_streams().pop_back(); });
  module.def("prefer_nccl", [](std::string path) { nccl::prefer_library(std::move(path)); });
  module.def("default_device", [] { return run_without_gil([] { return to_string(default_device()); }); });
}

}  // namespace crossrank::python
