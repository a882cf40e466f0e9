#include "workspace/checkpoint/memory/exchange/export_buffers.hpp"

#include <algorithm>
#include <utility>

namespace crossrank::checkpoint {
namespace {

/// Peak of all exports of this process; orders nothing.
constinit std::atomic<std::size_t> process_peak{0};

}  // namespace

void ExportBuffers::count(std::size_t more) {
  bytes_ += more;
  peak_ = std::max(peak_, bytes_);
  auto known = process_peak.load(std::memory_order_relaxed);
  while (known < peak_ && !process_peak.compare_exchange_weak(known, peak_, std::memory_order_relaxed)) {
  }
}

ExportBuffers::Memory ExportBuffers::take(std::size_t bytes, std::chrono::milliseconds limit) {
  bytes = std::max<std::size_t>(bytes, 1);
  std::unique_lock lock(mutex_);
  if (!freed_.wait_for(lock, limit, [this] { return in_use_ < max_; })) return {};
  Idle buffer;
  if (!idle_.empty()) {
    buffer = std::move(idle_.back());
    idle_.pop_back();
  }
  if (buffer.bytes < bytes) {
    bytes_ -= buffer.bytes;
    buffer = {};  // freed first
    buffer = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    count(bytes);
  }
  ++in_use_;
  auto* const data = buffer.data.release();
  auto const size = buffer.bytes;
  lock.unlock();  // without memory for it, the pointer gives the buffer back at once
  return {std::shared_ptr<std::byte>(data,
                                     [self = shared_from_this(), size](std::byte* memory) {
                                       self->give_back(std::unique_ptr<std::byte[]>(memory), size);
                                     }),
          size};
}

void ExportBuffers::give_back(std::unique_ptr<std::byte[]> data, std::size_t bytes) {
  std::lock_guard const lock(mutex_);
  idle_.push_back({std::move(data), bytes});
  --in_use_;
  freed_.notify_all();
}

ExportBuffers::Memory ExportBuffers::allocate(std::size_t bytes) {
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  {
    std::lock_guard const lock(mutex_);
    block_bytes_ += bytes;
    count(bytes);
  }
  return {std::shared_ptr<std::byte>(memory.release(),
                                     [self = shared_from_this(), bytes](std::byte* data) {
                                       delete[] data;  // NOLINT(cppcoreguidelines-owning-memory): made above
                                       std::lock_guard const lock(self->mutex_);
                                       self->block_bytes_ -= bytes;
                                       self->bytes_ -= bytes;
                                       self->freed_.notify_all();
                                     }),
          bytes};
}

bool ExportBuffers::wait_for_blocks(std::size_t bytes, std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return freed_.wait_for(lock, limit, [&] { return block_bytes_ <= bytes; });
}

std::size_t ExportBuffers::peak_bytes() const {
  std::lock_guard const lock(mutex_);
  return peak_;
}

std::size_t ExportBuffers::process_peak_bytes() noexcept { return process_peak.load(std::memory_order_relaxed); }

}  // namespace crossrank::checkpoint
