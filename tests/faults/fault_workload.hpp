#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank::test {

/// A tensor of `bytes` bytes that only this owner and seed can have made.
[[nodiscard]] Tensor sample_tensor(int owner, int seed, std::int64_t bytes = 5000);
/// Throws `std::runtime_error` unless `tensor` is that one: a fault may cost an error, never wrong data.
void require_sample(Tensor const& tensor, int owner, int seed, std::int64_t bytes = 5000);

/// Runs `body`, a part of the job that `group` does alone: its errors then blame ranks of the job, as all others do.
void in_group(Collective const& group, std::function<void()> const& body);

/// All ranks of the group, as ranks of the job, from the `first`th on.
[[nodiscard]] std::vector<int> ranks_from(Collective const& group, int first);

/// Gathers to the `receiver`th rank of the group: a tensor, a state dict, configs, and the same through files in
/// `directory` when it is given; checks all that arrives.
void gather_everything(Collective const& group, int receiver, int seed, std::filesystem::path const& directory = {});

/// One use of everything that ranks on a node do together, each rank in each role, and the end of the group.
void use_everything(Collective world, std::filesystem::path const& directory);

}  // namespace crossrank::test
