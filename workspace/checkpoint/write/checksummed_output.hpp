#pragma once
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// Completes a file that has source, name and tensors: a torch archive of them. Its CRCs follow the data.
void arrange_torch(OutputFile& file);

/// The same: a state image with one checksum per tensor in its header.
void arrange_image(OutputFile& file, Json const& config, ImagePlace const& place);

}  // namespace crossrank::checkpoint
