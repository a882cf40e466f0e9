#pragma once
#include <string>

#include "lib/codec/torch/dcp_metadata.hpp"

namespace crossrank::codec {

/// Returns the `.metadata` of a distributed checkpoint as torch writes it: `FileSystemReader` of torch 2.4 and later
/// reads it, and `read_dcp_metadata`.
///
/// In the path of an object, a key of digits is a place in a list. `UsageError` for a dtype that torch does not have.
[[nodiscard]] std::string write_dcp_metadata(DcpMetadata const& metadata);

}  // namespace crossrank::codec
