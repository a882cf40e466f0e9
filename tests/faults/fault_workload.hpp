#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::test {

/// Returns a tensor of `bytes` bytes whose content depends on `owner` and `seed`.
[[nodiscard]] Tensor sample_tensor(int owner, int seed, std::int64_t bytes = 5000);
/// Throws `std::runtime_error` unless `tensor` is that sample. A fault may cause an error, but never wrong data.
void require_sample(Tensor const& tensor, int owner, int seed, std::int64_t bytes = 5000);

/// Runs `body`, in which only `group` takes part. An error's failed ranks are translated to ranks of the job.
void in_group(Collective const& group, std::function<void()> const& body);

/// Returns the ranks of the group from number `first` on, as ranks of the job.
[[nodiscard]] std::vector<int> ranks_from(Collective const& group, int first);

/// Gathers a tensor, a state dict and configs to rank `receiver` of the group, and the same through files if
/// `directory` is given. Checks everything that arrives.
void gather_everything(Collective const& group, int receiver, int seed, std::filesystem::path const& directory = {});

/// Runs every operation of ranks on one node once, with each rank in each role, and then closes the group.
void use_everything(Collective world, std::filesystem::path const& directory);

}  // namespace crossrank::test
