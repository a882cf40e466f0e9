#pragma once
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <crossrank/crossrank.hpp>

namespace train {

/// Tokens and the tokens that follow them.
struct Batch {
  xr::Tensor tokens{};         ///< I32 [sequences, length]
  std::vector<int> targets{};  ///< for each token the next one
};

/// Bytes of a file as tokens.
class Text {
 public:
  /// Reads the file. Throws `std::runtime_error` if it is shorter than a sequence.
  Text(std::filesystem::path const& path, std::size_t length);

  /// Returns sequences `[first, last)` of the batch of a step. The same on all ranks, for any number of ranks.
  [[nodiscard]] Batch batch(int step, int first, int last) const;

 private:
  std::string bytes_{};
  std::size_t length_;
};

}  // namespace train
