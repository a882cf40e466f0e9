#include "tests/examples/run_example.hpp"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>

namespace crossrank::test {

CommandEnd run_example(int ranks, std::string const& name, std::vector<std::string> const& arguments) {
  std::vector<std::string> command{"run", "-n", std::to_string(ranks), "--",
                                   std::string(CROSSRANK_EXAMPLES) + "/" + name};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return CommandRun(command).finish(std::chrono::seconds(120));
}

std::string contents(std::filesystem::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> names_in(std::filesystem::path const& directory) {
  std::vector<std::string> names;
  if (!std::filesystem::exists(directory)) return names;
  for (auto const& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace crossrank::test
