#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>

#include <crossrank/spi/device_transport.hpp>
#include <crossrank/spi/storage.hpp>
#include <crossrank/stream.hpp>

#include "collectives/nccl/nccl_library.hpp"

namespace crossrank::nccl {

/// A communicator of NCCL that does not block: each call on it can be given up from another thread.
class Communicator {
 public:
  using PollHook = spi::DevicePollHook;

  /// Draws the id of a new communicator, for all its ranks.
  [[nodiscard]] static api::UniqueId draw_id();

  /// Joins the communicator of `id`. Collective; blocks until all ranks have joined. `BackendError` when NCCL refuses,
  /// `TimeoutError` when ranks are missing for longer than `timeout`, and what `poll_hook` throws.
  Communicator(api::UniqueId const& id, spi::DevicePlace place, std::chrono::milliseconds timeout,
               PollHook const& poll_hook);
  ~Communicator() { close({}); }
  Communicator(Communicator const&) = delete;
  Communicator& operator=(Communicator const&) = delete;

  [[nodiscard]] spi::DevicePlace const& place() const noexcept { return place_; }
  [[nodiscard]] api::Functions const& functions() const noexcept { return library_.functions; }

  /// Returns NCCL's handle, or null once it has ended. Any thread.
  [[nodiscard]] api::Comm* native() noexcept;

  /// A call of NCCL, and the name of its function for errors.
  struct Step {
    char const* function = "";
    std::function<api::Result(api::Functions const&, api::Comm*)> call{};
  };
  /// Enqueues the steps, several of them as one group. Returns when NCCL has enqueued them; does not wait for the GPU.
  /// `BackendError` when NCCL refuses or the communicator has been aborted, and what `poll_hook` throws.
  void enqueue(char const* operation, std::span<Step const> steps, PollHook const& poll_hook);

  /// Registers memory of NCCL's allocator, so that calls on it need no copies of NCCL's own: as a window of all ranks
  /// where NCCL has windows, then collective with the same number of bytes, else local. Keeps the memory until the
  /// communicator ends. Does nothing where NCCL cannot register memory. Errors as for `enqueue`.
  void register_memory(std::shared_ptr<spi::Storage> memory, PollHook const& poll_hook);

  /// Ends the communicator after its work, or aborts it where that takes longer than five seconds. `last_work` is the
  /// end of the work that was enqueued last: no registered memory is in use after it.
  void close(Event const& last_work) noexcept;
  /// Ends the communicator's kernels on this rank, so that streams continue; their results are undetermined. Any
  /// thread. Waits up to a second for a call of NCCL under way, then aborts anyway: a launch may block until the
  /// kernels before it end. An abort that does not end within five seconds is left to a thread.
  void abort() noexcept;
  /// Returns NCCL's own verdict: success unless the network or a peer has failed. An aborted communicator has an
  /// internal error. Returns "in progress" while another thread is in a call of NCCL. Any thread; does not block.
  [[nodiscard]] api::Result async_error() noexcept;

 private:
  void join(api::UniqueId const& id);
  /// Waits for the work that is enqueued. Returns false when there is no communicator any more.
  [[nodiscard]] bool finalize();
  /// Waits until NCCL has done what this thread's last call began.
  void await_result(char const* operation, char const* function, std::chrono::milliseconds timeout,
                    PollHook const& poll_hook);
  /// Lets NCCL complete the job of a call that has ended. NCCL 2.19 to 2.25 keeps it with the calling thread until the
  /// thread's next call on the communicator, and a call on another communicator before that crashes.
  void complete_job(char const* operation, char const* function);
  void check(api::Result result, char const* function, char const* operation) const;
  void require_not_aborted(char const* operation);
  [[nodiscard]] api::Result post(api::Comm* comm, std::span<Step const> steps, char const*& function);
  /// Memory that this rank has registered. One of the two handles is set.
  struct Registered {
    std::shared_ptr<spi::Storage> memory{};
    void* handle = nullptr;
    api::Window* window = nullptr;
  };
  /// Deregisters all memory after the work. NCCL needs that before the communicator is finalized.
  void deregister_memory(Event const& last_work);
  enum class End : std::uint8_t { none, closed, aborted };
  /// Takes the communicator, so that no later call uses it.
  [[nodiscard]] api::Comm* take(End how) noexcept;

  NcclLibrary const& library_;
  spi::DevicePlace const place_;
  std::chrono::milliseconds const timeout_;
  std::mutex calls_mutex_{};  ///< held during each call of NCCL, because an abort frees the communicator
  std::mutex mutex_{};        ///< guards `comm_` and `end_`; never held during a call of NCCL
  api::Comm* comm_ = nullptr;
  End end_ = End::none;
  std::list<Registered> registered_{};  ///< a list, because NCCL writes a window later
};

}  // namespace crossrank::nccl
