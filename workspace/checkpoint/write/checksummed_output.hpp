#pragma once
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// Completes the layout of a torch archive from its source, name and tensors. Its CRCs follow the data.
void arrange_torch(OutputFile& file);

/// Completes the layout of a state image from its source, name and tensors. Its header has one checksum per tensor.
void arrange_image(OutputFile& file, Json const& config, ImagePlace const& place);

}  // namespace crossrank::checkpoint
