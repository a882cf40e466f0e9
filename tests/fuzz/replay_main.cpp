#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/allocation_meter.hpp"
#include "tests/fuzz/mutator.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

using crossrank::test::AllocationMeter;

/// Limits of a target's memory: a constant, and a factor per byte of input, because one byte of a pickle may make a
/// node.
constexpr std::int64_t own_bytes = std::int64_t{256} << 10;
constexpr std::int64_t for_each_byte = 256;

/// Larger files contain data that no parser looks at.
constexpr std::uintmax_t largest_seed = std::uintmax_t{64} << 10;

std::int64_t highest = 0;

void run(std::string_view text) {
  AllocationMeter::start();
  LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(text.data()), text.size());
  auto const peak = AllocationMeter::peak();
  if (peak > highest) highest = peak;
  if (peak <= own_bytes + for_each_byte * static_cast<std::int64_t>(text.size())) return;
  std::printf("%lld bytes of memory for an input of %zu\n", static_cast<long long>(peak), text.size());
  std::exit(1);
}

void add_files(std::filesystem::path const& folder, std::vector<std::string>& texts) {
  for (auto const& file : std::filesystem::directory_iterator(folder)) {
    if (!file.is_regular_file() || file.file_size() > largest_seed) continue;
    std::ifstream stream(file.path(), std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
}

}  // namespace

/// Runs a fuzz target without libFuzzer: on each file of the folders, whole and truncated to every length up to 600
/// bytes, then on N inputs near them. Usage: `FOLDER... [--mutations N] [--seed S]`.
int main(int argc, char** argv) {
  std::vector<std::string> texts;
  std::uint64_t mutations = 0;
  std::uint64_t seed = std::random_device{}();
  for (int i = 1; i < argc; ++i) {
    std::string_view const argument = argv[i];
    if ((argument == "--mutations" || argument == "--seed") && i + 1 < argc) {
      (argument == "--seed" ? seed : mutations) = std::strtoull(argv[++i], nullptr, 10);
    } else {
      add_files(argument, texts);
    }
  }
  if (texts.empty()) return 1;
  std::printf("seed %llu, %zu files\n", static_cast<unsigned long long>(seed), texts.size());
  std::fflush(stdout);  // most useful when a target ends the program
  for (auto const& text : texts) {
    for (std::size_t size = 0; size < text.size() && size < 600; ++size) run(std::string_view(text).substr(0, size));
    run(text);
  }
  crossrank::test::Mutator mutator(texts, seed);
  for (std::uint64_t i = 0; i < mutations; ++i) run(mutator.next());
  std::printf("%llu mutations, at most %lld bytes of memory\n", static_cast<unsigned long long>(mutations),
              static_cast<long long>(highest));
  return 0;
}
