// Modules and kernels. The image of a module is not run: its kernels are C++ functions, those of the library and those
// that tests register by name. A module whose image is PTX with kernels has these only, with the parameters of the
// text.
#include <cstring>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/emulated_gpu.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/options.hpp"
#include "tests/support/emulated_gpu/cuda/ptx.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

struct Kernel {
  std::string name;
  EmulatedKernel body = nullptr;
  std::vector<std::size_t> sizes;
};
struct Module {
  Context* context = nullptr;
  Ptx ptx{};
};
/// A kernel of one module, which ends with the module.
struct Function {
  std::shared_ptr<Kernel> kernel;
  std::weak_ptr<Module> module;
};

struct Kernels {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Kernel>> by_name;
  Registry<CUfunction, Function> functions;
  Registry<CUmodule, Module> modules;
};
Kernels& kernels() {
  static auto* const instance = new Kernels;
  return *instance;
}

bool is_text(char const* image) { return image[0] == '/' || image[0] == '.' || image[0] == '\n'; }

/// ELF, a fat binary, or the text of PTX; everything else is no image.
bool is_image(void const* image) {
  unsigned magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  return magic == 0xBA55ED50U || magic == 0x466243B1U || magic == 0x464C457FU ||
         is_text(static_cast<char const*>(image));
}

/// The function of a name in a module. `CUDA_ERROR_INVALID_IMAGE` when the parameters in the image are others than
/// those of the registered body.
std::shared_ptr<Function> function_of(std::shared_ptr<Module> const& module, std::string const& name) {
  auto const& entries = module->ptx.entries;
  auto const entry = entries.find(name);
  require(entries.empty() || entry != entries.end(), CUDA_ERROR_NOT_FOUND);
  std::lock_guard const lock(kernels().mutex);
  auto const found = kernels().by_name.find(name);
  require(found != kernels().by_name.end(), CUDA_ERROR_NOT_FOUND);
  if (entry != entries.end() && entry->second != found->second->sizes) {
    emulated_report(("kernel " + name + " has other parameters in its image").c_str());
    throw Failure{CUDA_ERROR_INVALID_IMAGE};
  }
  return std::make_shared<Function>(Function{found->second, module});
}

void load(CUmodule* handle, void const* image) {
  require(image != nullptr, CUDA_ERROR_INVALID_VALUE);
  require(is_image(image), CUDA_ERROR_INVALID_IMAGE);
  auto module = std::make_shared<Module>();
  module->context = current();
  if (auto const* const text = static_cast<char const*>(image); is_text(text)) module->ptx = read_ptx(text);
  require(module->ptx.target <= options().capability, CUDA_ERROR_NO_BINARY_FOR_GPU);
  out(handle) = kernels().modules.add(std::move(module));
}

/// Copies of the arguments, taken at the launch.
struct Arguments {
  std::vector<std::vector<std::byte>> values;
  std::vector<void*> pointers;
};

std::shared_ptr<Arguments> copy_arguments(Kernel const& kernel, void** parameters) {
  require(parameters != nullptr || kernel.sizes.empty(), CUDA_ERROR_INVALID_VALUE);
  auto arguments = std::make_shared<Arguments>();
  for (std::size_t i = 0; i < kernel.sizes.size(); ++i) {
    auto const* const bytes = static_cast<std::byte const*>(parameters[i]);
    require(bytes != nullptr, CUDA_ERROR_INVALID_VALUE);
    arguments->values.emplace_back(bytes, bytes + kernel.sizes[i]);
  }
  for (auto& value : arguments->values) arguments->pointers.push_back(value.data());
  return arguments;
}

template <class Word>
void wait_value(CUstream handle, CUdeviceptr address, Word value, unsigned flags) {
  auto const stream = current_stream_of(handle);
  static_cast<void>(memory().check(address, sizeof value));
  int const device = stream->context.device;
  submit(stream, {.name = "wait for a value", .run = [=] {
                    auto const met = [&] {
                      auto* const word = reinterpret_cast<Word*>(memory().resolve(address, sizeof value, device, true));
                      auto const now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
                      switch (flags & 3U) {
                        case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
                        case CU_STREAM_WAIT_VALUE_EQ: return now == value;
                        case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
                        default: return static_cast<Word>(~(now | value)) != 0;
                      }
                    };
                    while (!met()) std::this_thread::sleep_for(std::chrono::microseconds(50));
                  }});
}

template <class Word>
void write_value(CUstream handle, CUdeviceptr address, Word value) {
  auto const stream = current_stream_of(handle);
  static_cast<void>(memory().check(address, sizeof value));
  int const device = stream->context.device;
  submit(stream, {.name = "write a value", .run = [=] {
                    auto* const word = reinterpret_cast<Word*>(memory().resolve(address, sizeof value, device, true));
                    __atomic_store_n(word, value, __ATOMIC_RELEASE);
                  }});
}

}  // namespace
}  // namespace emulated

using namespace emulated;

void emulated_register_kernel(char const* name, EmulatedKernel body, std::size_t const* sizes, std::size_t count) {
  auto kernel = std::make_shared<Kernel>(Kernel{name, body, {sizes, sizes + count}});
  std::lock_guard const lock(kernels().mutex);
  kernels().by_name[name] = std::move(kernel);
}

extern "C" {

CUresult cuModuleLoadData(CUmodule* handle, void const* image) {
  return call("cuModuleLoadData", Needs::context, [&] { load(handle, image); });
}
CUresult cuModuleLoadDataEx(CUmodule* handle, void const* image, unsigned, CUjit_option*, void**) {
  return call("cuModuleLoadDataEx", Needs::context, [&] { load(handle, image); });
}
CUresult cuModuleLoadFatBinary(CUmodule* handle, void const* image) {
  return call("cuModuleLoadFatBinary", Needs::context, [&] { load(handle, image); });
}
CUresult cuModuleUnload(CUmodule handle) {
  return call("cuModuleUnload", Needs::context, [&] { kernels().modules.remove(handle); });
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, char const* name) {
  return call("cuModuleGetFunction", Needs::context, [&] {
    require(name != nullptr, CUDA_ERROR_INVALID_VALUE);
    auto found = function_of(kernels().modules.find(handle), name);
    out(function) = kernels().functions.add(std::move(found));
  });
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction function) {
  return call("cuFuncGetAttribute", Needs::context, [&] {
    static_cast<void>(kernels().functions.find(function));
    out(value) = 1024;
  });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream handle, void** parameters,
                        void** extra) {
  return call("cuLaunchKernel", Needs::context, [&] {
    auto const found = kernels().functions.find(function);
    auto const kernel = found->kernel;
    auto const module = found->module.lock();
    auto const stream = current_stream_of(handle);
    require(module && module->context == &stream->context, CUDA_ERROR_INVALID_HANDLE);
    EmulatedLaunch const launch{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, stream->context.device};
    auto const threads = 1ULL * block_x * block_y * block_z;
    require(extra == nullptr && threads != 0 && threads <= 1024, CUDA_ERROR_INVALID_VALUE);
    require(grid_x != 0 && grid_y != 0 && grid_y <= 65535 && grid_z != 0 && grid_z <= 65535, CUDA_ERROR_INVALID_VALUE);
    auto const arguments = copy_arguments(*kernel, parameters);
    submit(stream,
           {.name = kernel->name, .run = [=] { kernel->body(&launch, arguments->pointers.data()); }, .kernel = true});
  });
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return call("cuStreamWaitValue32_v2", Needs::context, [&] { wait_value(stream, address, value, flags); });
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return call("cuStreamWaitValue64_v2", Needs::context, [&] { wait_value(stream, address, value, flags); });
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return call("cuStreamWriteValue32_v2", Needs::context, [&] { write_value(stream, address, value); });
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  return call("cuStreamWriteValue64_v2", Needs::context, [&] { write_value(stream, address, value); });
}
}
