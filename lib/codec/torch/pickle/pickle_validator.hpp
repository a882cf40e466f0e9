#pragma once
#include "lib/codec/torch/pickle/pickle_reader.hpp"

namespace crossrank::codec {

/// Looks at everything that the root holds: no value holds itself, none is nested too deep, no dict has a key twice,
/// and the tree written out would stay within the limits. `FormatError`.
void validate_pickle(PickleTree const& tree, PickleOptions const& options);

}  // namespace crossrank::codec
