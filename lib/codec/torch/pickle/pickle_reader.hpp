#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/torch/pickle/pickle_allowlist.hpp"
#include "lib/codec/torch/pickle/pickle_tree.hpp"

namespace crossrank::codec {

/// How much a pickle may hold. Memory is bounded by the pickle's own size besides: no value takes none of its bytes.
struct PickleLimits {
  std::uint64_t pickle_bytes = std::uint64_t{64} << 20;
  std::size_t nodes = 8'000'000;        ///< values
  std::uint64_t expanded = 64'000'000;  ///< values, shared ones counted each time they are held
  std::size_t depth = 256;
  std::size_t made_bytes = std::size_t{16} << 20;  ///< of byte strings that are written as text
};

struct PickleOptions {
  PickleAllowlist allowlist = torch_allowlist();
  std::vector<std::string> extra_globals{};  ///< names taken besides, as opaque values: "module.name"
  PickleLimits limits{};
  std::string source{};            ///< for messages
  std::string section = "pickle";  ///< part of the source that it is
  std::uint64_t base = 0;          ///< where in the source its first byte stands
};

/// Interprets a pickle to a tree and calls nothing: what would construct an object stays a description of it.
///
/// `FormatError` with the section and the byte of the source for every opcode and name that the allowlist does not
/// have, for malformed ones, repeated keys, a value that holds itself, and more than the limits.
[[nodiscard]] std::shared_ptr<PickleTree const> read_pickle(std::vector<std::byte> pickle,
                                                            PickleOptions const& options);

/// Throws the `FormatError` for something at byte `at` of a pickle.
[[noreturn]] void refuse_pickle(PickleOptions const& options, std::uint64_t at, std::string message,
                                std::string hint = {});

}  // namespace crossrank::codec
