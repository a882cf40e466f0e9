#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace crossrank::test {

/// Makes random inputs near the given seeds: with a few changed bits, numbers or blocks, or with the end of another
/// seed.
class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}
  [[nodiscard]] std::string next();

 private:
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : static_cast<std::size_t>(random_() % bound); }
  void change(std::string& text);
  void put_number(std::string& text, std::size_t at);

  std::vector<std::string> seeds_;
  std::mt19937_64 random_;
};

}  // namespace crossrank::test
