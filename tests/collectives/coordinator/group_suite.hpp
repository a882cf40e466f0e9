#pragma once
#include <span>
#include <string_view>
#include <vector>

#include <crossrank/collective.hpp>

namespace crossrank::test {

/// One property of `GroupCoordinator` that every backend has for every number of ranks.
struct GroupCase {
  std::string_view name;
  void (*body)(Collective const& world);
  int min_ranks = 1;        ///< smallest number of ranks for which the case makes sense
  bool on_devices = false;  ///< moves tensors of the case's device, which may be a GPU
};

[[nodiscard]] std::span<GroupCase const> group_suite();

void dense_operations_match_the_serial_reference(Collective const& world);
void uneven_operations_match_the_serial_reference(Collective const& world);
void tensors_reach_their_receivers(Collective const& world);
void pairs_of_ranks_do_not_interfere(Collective const& world);
void experts_use_sequence_parallelism(Collective const& world);
void experts_use_their_data_parallel_group(Collective const& world);
void experts_without_a_data_parallel_group_stay_local(Collective const& world);
void objects_are_sent_by_queue(Collective const& world);
void a_queue_reaches_all_ranks(Collective const& world);
void queues_of_all_ranks_reach_one(Collective const& world);
void queues_take_a_writer_from_outside(Collective const& world);
void ranks_keep_their_device_in_every_group(Collective const& world);
void dictionaries_arrive(Collective const& world);
void dictionaries_follow_the_all_gather_rule(Collective const& world);

/// A case with a number of ranks: the parameter of a backend's suite.
struct GroupParameter {
  GroupCase test{};
  int ranks = 1;
};

[[nodiscard]] std::vector<GroupParameter> group_parameters(std::vector<int> const& sizes);
/// Returns the parameters of the cases that move tensors.
[[nodiscard]] std::vector<GroupParameter> group_device_parameters(std::vector<int> const& sizes);
[[nodiscard]] std::string group_parameter_name(GroupParameter const& parameter);

}  // namespace crossrank::test
