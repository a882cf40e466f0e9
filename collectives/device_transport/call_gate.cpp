#include "collectives/device_transport/call_gate.hpp"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>
#include <crossrank/spi/device_provider.hpp>

#include "lib/core/no_destructor.hpp"

namespace crossrank::device {
namespace {

/// The words of all groups of the process.
class WordStore {
 public:
  std::uint32_t* take(Device::Kind kind) {
    std::lock_guard const lock(mutex_);
    auto& words = of_kind_[kind];
    if (words.free.empty()) add_block(kind, words);
    auto* const word = words.free.back();
    words.free.pop_back();
    return word;
  }
  void give_back(Device::Kind kind, std::uint32_t* word) noexcept {
    std::lock_guard const lock(mutex_);
    of_kind_[kind].free.push_back(word);  // has space since `add_block`
  }

 private:
  static constexpr std::size_t block_bytes = 4'096;
  static constexpr std::size_t line_bytes = 64;  // so that groups do not share cache lines
  static constexpr std::size_t words_in_block = block_bytes / line_bytes;

  struct Words {
    std::vector<std::shared_ptr<spi::Storage>> blocks{};
    std::vector<std::uint32_t*> free{};
  };

  static void add_block(Device::Kind kind, Words& words) {
    words.free.reserve((words.blocks.size() + 1) * words_in_block);
    words.blocks.reserve(words.blocks.size() + 1);
    auto block = spi::device_provider(kind).allocate_pinned(block_bytes);
    std::memset(block->data(), 0, block_bytes);
    for (std::size_t at = 0; at < block_bytes; at += line_bytes)
      words.free.push_back(reinterpret_cast<std::uint32_t*>(block->data() + at));
    words.blocks.push_back(std::move(block));
  }

  std::mutex mutex_{};
  std::map<Device::Kind, Words> of_kind_{};
};

WordStore& word_store() {
  static NoDestructor<WordStore> all;
  return all.value;
}

}  // namespace

std::unique_ptr<CallGate> CallGate::make(Stream const& stream) {
  auto const kind = stream.device().kind;
  auto& provider = spi::device_provider(kind);
  try {
    if (!provider.can_wait_for_host(stream.device())) return nullptr;
    auto gate = std::make_unique<CallGate>(kind, word_store().take(kind));
    provider.wait_for_host(stream, gate->word_, gate->read());  // a driver may have the function and refuse it
    return gate;
  } catch (Error const&) {  // then the host waits
    return nullptr;
  }
}

CallGate::CallGate(Device::Kind kind, std::uint32_t* word) : kind_(kind), word_(word), last_(read()) {}

CallGate::~CallGate() {
  release_all();
  word_store().give_back(kind_, word_);
}

void CallGate::write(std::uint32_t number) noexcept {
  std::atomic_ref(*word_).store(number, std::memory_order_release);  // partner: the GPU
}

std::uint32_t CallGate::read() const noexcept { return std::atomic_ref(*word_).load(std::memory_order_relaxed); }

std::uint32_t CallGate::next() noexcept {
  std::lock_guard const lock(mutex_);
  return ++last_;
}

void CallGate::hold(Stream const& stream, std::uint32_t number) {
  {
    std::lock_guard const lock(mutex_);
    if (is_open_) return;
  }
  // Without the lock: the driver may block here until others have released the streams.
  spi::device_provider(stream.device().kind).wait_for_host(stream, word_, number);
}

void CallGate::release(std::uint32_t number) noexcept {
  std::lock_guard const lock(mutex_);
  if (!is_open_) write(number);
}

void CallGate::release_all() noexcept {
  std::lock_guard const lock(mutex_);
  is_open_ = true;
  write(last_);
}

bool CallGate::holds_any() const noexcept {
  std::lock_guard const lock(mutex_);
  return !is_open_ && read() != last_;
}

}  // namespace crossrank::device
