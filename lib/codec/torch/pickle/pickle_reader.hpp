#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/codec/torch/pickle/pickle_allowlist.hpp"
#include "lib/codec/torch/pickle/pickle_tree.hpp"

namespace crossrank::codec {

/// Limits of a pickle. Its own size also limits memory, because every value takes at least one of its bytes.
struct PickleLimits {
  std::uint64_t pickle_bytes = std::uint64_t{64} << 20;
  std::size_t nodes = 8'000'000;        ///< number of values
  std::uint64_t expanded = 64'000'000;  ///< number of values, shared ones counted at each use
  std::size_t depth = 256;
  std::size_t made_bytes = std::size_t{16} << 20;  ///< bytes of byte strings that are written as text
};

struct PickleOptions {
  PickleAllowlist allowlist = torch_allowlist();
  std::vector<std::string> extra_globals{};  ///< more allowed names, as opaque values: "module.name"
  PickleLimits limits{};
  std::string source{};            ///< name of the source, for messages
  std::string section = "pickle";  ///< part of the source, for messages
  std::uint64_t base = 0;          ///< offset of its first byte in the source
};

/// Interprets a pickle as a tree without calling anything: a constructor call becomes a description of the object.
///
/// `FormatError` with the section and the byte of the source for an opcode or name that is not in the allowlist, for a
/// malformed pickle, repeated keys, a value that contains itself, and more than the limits.
[[nodiscard]] std::shared_ptr<PickleTree const> read_pickle(std::vector<std::byte> pickle,
                                                            PickleOptions const& options);

/// Throws the `FormatError` for byte `at` of a pickle.
[[noreturn]] void refuse_pickle(PickleOptions const& options, std::uint64_t at, std::string message,
                                std::string hint = {});

}  // namespace crossrank::codec
