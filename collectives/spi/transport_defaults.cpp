#include <crossrank/spi/transport.hpp>

#include "lib/node/group/group.hpp"

namespace crossrank::spi {

std::optional<RequestId> Transport::post_all_reduce(Signature, Source const&, Sink const&, Reduction) { return {}; }

std::optional<RequestId> Transport::post_reduce(Signature, Source const&, Sink const&, int, Reduction) { return {}; }

std::optional<RequestId> Transport::post_reduce_scatterv(Signature, Source const&, std::span<std::size_t const>,
                                                         Sink const&, Reduction) {
  return {};
}

std::optional<RequestId> Transport::post_gatherv(Signature, Source const&, std::span<std::size_t const>, Sink const&,
                                                 int) {
  return {};
}

std::optional<RequestId> Transport::post_scatterv(Signature, Source const&, std::span<std::size_t const>, Sink const&,
                                                  int) {
  return {};
}

std::optional<RequestId> Transport::post_all_to_allv(Signature, Source const&, std::span<std::size_t const>,
                                                     Sink const&, std::span<std::size_t const>) {
  return {};
}

void Transport::report_lost(std::span<int const>, std::string_view why) noexcept { abort(why); }

void Transport::report_failure(ErrorCode, std::span<int const>, std::string_view why) noexcept { abort(why); }

void Transport::note_peer_error(int) noexcept {}

std::vector<int> Transport::failed_ranks() { return {}; }
bool Transport::watch_peers(RequestId, TimeoutPolicy const&, std::unique_ptr<PeerWatch>&) { return false; }
void Transport::keep_alive() noexcept {}
std::uint64_t Transport::progress() const noexcept { return 0; }

void Transport::mark_user_code(UserCode) noexcept {}

// NOLINTNEXTLINE(performance-unnecessary-value-param): for those that keep it
void Transport::set_poll_hook(std::function<void()>) {}

}  // namespace crossrank::spi
