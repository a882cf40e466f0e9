#pragma once
#include <set>
#include <string_view>
#include <vector>

#include "tests/collectives/conformance/conformance.hpp"

namespace crossrank::test {

/// Returns the cases for ranks that exchange packets in memory: all but those that connect again by name, which need a
/// backend, and those with all ranks on one node.
[[nodiscard]] inline std::vector<ConformanceParameter> packet_cases(std::vector<int> const& sizes) {
  static std::set<std::string_view> const apart{"a_second_connect_returns_the_same_job",
                                                "a_second_connect_refuses_another_job_under_the_same_id",
                                                "a_job_can_be_joined_again_after_it_was_closed",
                                                "two_jobs_do_not_disturb_each_other", "the_world_knows_its_ranks"};
  auto all = conformance_parameters(sizes);
  std::erase_if(all, [](auto const& one) { return apart.contains(one.test.name); });
  return all;
}

}  // namespace crossrank::test
