#pragma once

namespace crossrank::cuda {

/// The text of kernels.ptx, with a terminating zero. The build makes its source.
extern unsigned char const kernel_image[];

}  // namespace crossrank::cuda
