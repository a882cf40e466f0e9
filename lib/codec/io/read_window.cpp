#include "lib/codec/io/read_window.hpp"

#include <algorithm>

#include "lib/tensor/copy_memory.hpp"

namespace crossrank::codec {
namespace {

// From this size on a separate read costs less than a copy.
constexpr std::size_t direct_bytes = std::size_t{128} << 10;

}  // namespace

ReadWindow::ReadWindow(ByteSource const& source, std::uint64_t begin, std::uint64_t bytes, std::size_t block)
    : source_(source), begin_(begin), bytes_(bytes), most_(std::min(block, block_bytes)) {
  if (auto const memory = source.memory()) memory_ = memory->data() + begin;
}

std::byte const* ReadWindow::view(std::uint64_t at, std::size_t count) {
  if (memory_ != nullptr) return memory_ + at;
  if (at < block_at_ || at + count > block_at_ + block_.size()) {
    block_.resize(std::min<std::uint64_t>(std::max(most_, count), bytes_ - at));
    block_at_ = at;
    source_.read_at(begin_ + at, block_);
  }
  return block_.data() + (at - block_at_);
}

void ReadWindow::copy(std::uint64_t at, std::span<std::byte> to) {
  if (to.empty()) return;
  if (memory_ == nullptr && to.size() >= direct_bytes) {
    source_.read_at(begin_ + at, to);
  } else {
    copy_memory(to.data(), view(at, to.size()), to.size());
  }
}

}  // namespace crossrank::codec
