// Copies and fills. A copy with pageable host memory waits on the host, as the real driver stages it.
#include <cstring>

#include "tests/support/emulated_gpu/cuda/capture.hpp"
#include "tests/support/emulated_gpu/cuda/device.hpp"
#include "tests/support/emulated_gpu/cuda/log.hpp"
#include "tests/support/emulated_gpu/cuda/memory.hpp"
#include "tests/support/emulated_gpu/cuda/stream.hpp"

namespace emulated {
namespace {

/// One side of a copy: rows of bytes within slices.
struct Side {
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  std::size_t slice = 0;  // bytes from one slice to the next
  bool pageable = false;  // ordinary host memory
};

struct Shape {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t depth = 1;
};

std::size_t extent(Side const& side, Shape const& shape) {
  return (shape.depth - 1) * side.slice + (shape.height - 1) * side.pitch + shape.width;
}

std::byte* bytes_of(Side const& side, Shape const& shape, int device) {
  if (side.pageable) return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(side.address));
  return memory().resolve(side.address, extent(side, shape), device, false);
}

void move(std::byte* to, Side const& dst, std::byte const* from, Side const& src, Shape const& shape) {
  for (std::size_t z = 0; z < shape.depth; ++z) {
    for (std::size_t y = 0; y < shape.height; ++y) {
      std::memmove(to + z * dst.slice + y * dst.pitch, from + z * src.slice + y * src.pitch, shape.width);
    }
  }
}

enum class Where { host, device, any };

/// Checks one side at the call, as the real driver does.
Side side_of(CUdeviceptr address, Where kind, Shape const& shape, std::size_t pitch, std::size_t slice) {
  Side side{address, pitch, slice};
  auto const size = extent(side, shape);
  auto const range = memory().find(address);
  bool const host = !range || range->on_host();
  require(kind != Where::host || host, CUDA_ERROR_INVALID_VALUE);
  require(kind != Where::device || range != nullptr, CUDA_ERROR_INVALID_VALUE);
  require(address != 0, CUDA_ERROR_INVALID_VALUE);
  if (range && !host) static_cast<void>(memory().check(address, size));
  if (host) side.pageable = !memory().pinned(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), size);
  return side;
}

void copy(Side const& dst, Side const& src, Shape const& shape, std::shared_ptr<Stream> const& stream, bool wait) {
  static_cast<void>(log_call("copy"));
  log_amount("copied_bytes", shape.width * shape.height * shape.depth);
  int const device = stream->context.device;
  // A captured copy keeps the address of pageable memory, and reads or writes it when the graph is launched.
  bool const captured = (dst.pageable || src.pageable) && captured_end(*stream).capture != nullptr;
  auto staged = std::make_shared<std::vector<std::byte>>();
  Side from = src;
  if (src.pageable && !dst.pageable && !captured) {
    // The driver reads the source into its own buffer before the call returns.
    if (!wait) {
      static_cast<void>(log_call("pageable_copy"));
      wait_on_host({stream, stream->last()});
    }
    staged->resize(extent(src, shape));
    std::memcpy(staged->data(), bytes_of(src, shape, device), staged->size());
    from.address = reinterpret_cast<std::uintptr_t>(staged->data());
  }
  auto const end =
      submit(stream, {.name = "copy", .run = [=] {
                        move(bytes_of(dst, shape, device), dst, bytes_of(from, shape, device), from, shape);
                        static_cast<void>(staged);
                      }});
  if (captured) return;
  if (dst.pageable && !wait) static_cast<void>(log_call("pageable_copy"));
  if (wait || dst.pageable) wait_on_host(end);
}

/// A copy of one row. Synchronous copies run on the legacy stream.
void copy_row(CUdeviceptr dst, Where dst_kind, CUdeviceptr src, Where src_kind, std::size_t size,
              std::shared_ptr<Stream> const& stream, bool wait) {
  if (size == 0) return;
  Shape const shape{size};
  copy(side_of(dst, dst_kind, shape, size, size), side_of(src, src_kind, shape, size, size), shape, stream, wait);
}

CUdeviceptr address_of(void const* host) { return reinterpret_cast<std::uintptr_t>(host); }

Side side_of_3d(CUmemorytype type, void const* host, CUdeviceptr device, std::size_t offset, std::size_t pitch,
                std::size_t slice, Shape const& shape) {
  if (type == CU_MEMORYTYPE_HOST) return side_of(address_of(host) + offset, Where::host, shape, pitch, slice);
  require(type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED, CUDA_ERROR_INVALID_VALUE);
  return side_of(device + offset, type == CU_MEMORYTYPE_DEVICE ? Where::device : Where::any, shape, pitch, slice);
}

void copy_3d(CUDA_MEMCPY3D const& c, std::shared_ptr<Stream> const& stream, bool wait) {
  Shape const shape{c.WidthInBytes, c.Height, c.Depth};
  if (shape.width == 0 || shape.height == 0 || shape.depth == 0) return;
  auto const src_pitch = c.srcPitch == 0 ? c.WidthInBytes : c.srcPitch;
  auto const dst_pitch = c.dstPitch == 0 ? c.WidthInBytes : c.dstPitch;
  auto const src_height = c.srcHeight == 0 ? c.Height : c.srcHeight;
  auto const dst_height = c.dstHeight == 0 ? c.Height : c.dstHeight;
  require(src_pitch <= max_pitch && dst_pitch <= max_pitch, CUDA_ERROR_INVALID_VALUE);
  require(src_pitch >= c.WidthInBytes + c.srcXInBytes || c.Height * c.Depth == 1, CUDA_ERROR_INVALID_VALUE);
  require(dst_pitch >= c.WidthInBytes + c.dstXInBytes || c.Height * c.Depth == 1, CUDA_ERROR_INVALID_VALUE);
  auto const src_offset = (c.srcZ * src_height + c.srcY) * src_pitch + c.srcXInBytes;
  auto const dst_offset = (c.dstZ * dst_height + c.dstY) * dst_pitch + c.dstXInBytes;
  copy(side_of_3d(c.dstMemoryType, c.dstHost, c.dstDevice, dst_offset, dst_pitch, dst_pitch * dst_height, shape),
       side_of_3d(c.srcMemoryType, c.srcHost, c.srcDevice, src_offset, src_pitch, src_pitch * src_height, shape), shape,
       stream, wait);
}

CUDA_MEMCPY3D as_3d(CUDA_MEMCPY2D const& c) {
  CUDA_MEMCPY3D all{};
  all.srcXInBytes = c.srcXInBytes;
  all.srcY = c.srcY;
  all.srcMemoryType = c.srcMemoryType;
  all.srcHost = c.srcHost;
  all.srcDevice = c.srcDevice;
  all.srcPitch = c.srcPitch;
  all.dstXInBytes = c.dstXInBytes;
  all.dstY = c.dstY;
  all.dstMemoryType = c.dstMemoryType;
  all.dstHost = c.dstHost;
  all.dstDevice = c.dstDevice;
  all.dstPitch = c.dstPitch;
  all.WidthInBytes = c.WidthInBytes;
  all.Height = c.Height;
  all.Depth = 1;
  return all;
}

template <class Value>
void fill(CUdeviceptr address, Value value, std::size_t count, std::shared_ptr<Stream> const& stream) {
  if (count == 0) return;
  require(address % sizeof(Value) == 0, CUDA_ERROR_INVALID_VALUE);
  static_cast<void>(memory().check(address, count * sizeof(Value)));
  int const device = stream->context.device;
  submit(stream, {.name = "fill", .run = [=] {
                    auto* const bytes = memory().resolve(address, count * sizeof(Value), device, false);
                    for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes + i * sizeof value, &value, sizeof value);
                  }});
}

std::shared_ptr<Stream> legacy() { return current()->legacy; }

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" {

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t size) {
  return call("cuMemcpy", Needs::context, [&] { copy_row(dst, Where::any, src, Where::any, size, legacy(), true); });
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return call("cuMemcpyAsync", Needs::context,
              [&] { copy_row(dst, Where::any, src, Where::any, size, current_stream_of(stream), false); });
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, void const* src, std::size_t size) {
  return call("cuMemcpyHtoD_v2", Needs::context,
              [&] { copy_row(dst, Where::device, address_of(src), Where::host, size, legacy(), true); });
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, void const* src, std::size_t size, CUstream stream) {
  return call("cuMemcpyHtoDAsync_v2", Needs::context, [&] {
    copy_row(dst, Where::device, address_of(src), Where::host, size, current_stream_of(stream), false);
  });
}
CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, std::size_t size) {
  return call("cuMemcpyDtoH_v2", Needs::context,
              [&] { copy_row(address_of(dst), Where::host, src, Where::device, size, legacy(), true); });
}
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return call("cuMemcpyDtoHAsync_v2", Needs::context, [&] {
    copy_row(address_of(dst), Where::host, src, Where::device, size, current_stream_of(stream), false);
  });
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t size) {
  // The host does not wait for copies within a device.
  return call("cuMemcpyDtoD_v2", Needs::context,
              [&] { copy_row(dst, Where::device, src, Where::device, size, legacy(), false); });
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, std::size_t size, CUstream stream) {
  return call("cuMemcpyDtoDAsync_v2", Needs::context,
              [&] { copy_row(dst, Where::device, src, Where::device, size, current_stream_of(stream), false); });
}
CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                      std::size_t size) {
  return call("cuMemcpyPeer", Needs::context, [&] {
    static_cast<void>(context_of(dst_context));
    static_cast<void>(context_of(src_context));
    copy_row(dst, Where::device, src, Where::device, size, legacy(), true);
  });
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                           std::size_t size, CUstream stream) {
  return call("cuMemcpyPeerAsync", Needs::context, [&] {
    static_cast<void>(context_of(dst_context));
    static_cast<void>(context_of(src_context));
    copy_row(dst, Where::device, src, Where::device, size, current_stream_of(stream), false);
  });
}
CUresult cuMemcpy2D_v2(CUDA_MEMCPY2D const* c) {
  return call("cuMemcpy2D_v2", Needs::context, [&] { copy_3d(as_3d(out(c)), legacy(), true); });
}
CUresult cuMemcpy2DUnaligned_v2(CUDA_MEMCPY2D const* c) {
  return call("cuMemcpy2DUnaligned_v2", Needs::context, [&] { copy_3d(as_3d(out(c)), legacy(), true); });
}
CUresult cuMemcpy2DAsync_v2(CUDA_MEMCPY2D const* c, CUstream stream) {
  return call("cuMemcpy2DAsync_v2", Needs::context, [&] { copy_3d(as_3d(out(c)), current_stream_of(stream), false); });
}
CUresult cuMemcpy3D_v2(CUDA_MEMCPY3D const* c) {
  return call("cuMemcpy3D_v2", Needs::context, [&] { copy_3d(out(c), legacy(), true); });
}
CUresult cuMemcpy3DAsync_v2(CUDA_MEMCPY3D const* c, CUstream stream) {
  return call("cuMemcpy3DAsync_v2", Needs::context, [&] { copy_3d(out(c), current_stream_of(stream), false); });
}
CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, std::size_t count) {
  return call("cuMemsetD8_v2", Needs::context, [&] { fill(address, value, count, legacy()); });
}
CUresult cuMemsetD16_v2(CUdeviceptr address, unsigned short value, std::size_t count) {
  return call("cuMemsetD16_v2", Needs::context, [&] { fill(address, value, count, legacy()); });
}
CUresult cuMemsetD32_v2(CUdeviceptr address, unsigned value, std::size_t count) {
  return call("cuMemsetD32_v2", Needs::context, [&] { fill(address, value, count, legacy()); });
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream) {
  return call("cuMemsetD8Async", Needs::context, [&] { fill(address, value, count, current_stream_of(stream)); });
}
CUresult cuMemsetD16Async(CUdeviceptr address, unsigned short value, std::size_t count, CUstream stream) {
  return call("cuMemsetD16Async", Needs::context, [&] { fill(address, value, count, current_stream_of(stream)); });
}
CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, std::size_t count, CUstream stream) {
  return call("cuMemsetD32Async", Needs::context, [&] { fill(address, value, count, current_stream_of(stream)); });
}
}
