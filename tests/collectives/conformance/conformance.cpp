#include "tests/collectives/conformance/conformance.hpp"

#include <stdexcept>
#include <string>

namespace crossrank::test {

std::vector<ConformanceCase> conformance_cases() {
  std::vector<ConformanceCase> all;
  for (auto const part : {data_cases(), operation_cases(), reduction_cases(), element_cases(), request_cases(),
                          message_cases(), any_source_cases(), disagreement_cases(), group_cases(), lifetime_cases()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

ConformanceCase const& find_conformance_case(std::string_view name) {
  static auto const all = conformance_cases();
  for (auto const& test : all) {
    if (test.name == name) return test;
  }
  throw std::invalid_argument("unknown conformance case " + std::string(name));
}

void run_conformance_case(ConformanceCase const& test, ConformanceRank rank) {
  auto world = rank.world;
  test.body(rank);
  if (!test.kills_group) world.close();
}

std::vector<ConformanceParameter> conformance_parameters(std::vector<int> const& sizes) {
  std::vector<ConformanceParameter> all;
  for (auto const& test : conformance_cases()) {
    for (int const ranks : sizes) {
      if (ranks >= test.min_ranks) all.push_back({test, ranks});
    }
  }
  return all;
}

std::string parameter_name(ConformanceParameter const& parameter) {
  return std::string(parameter.test.name) + "_with_" + std::to_string(parameter.ranks);
}

}  // namespace crossrank::test
