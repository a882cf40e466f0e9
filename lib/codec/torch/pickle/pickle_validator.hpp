#pragma once
#include "lib/codec/torch/pickle/pickle_reader.hpp"

namespace crossrank::codec {

/// Checks all values under the root: no value contains itself, none is nested too deeply, no dict repeats a key, and
/// the expanded tree stays within the limits. `FormatError` otherwise.
void validate_pickle(PickleTree const& tree, PickleOptions const& options);

}  // namespace crossrank::codec
