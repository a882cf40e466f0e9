#pragma once
#if __cplusplus < 202002L
#error "crossrank needs C++20: compile with -std=c++20"
#endif
#include <crossrank/collective/check_level.hpp>
#include <crossrank/checkpoint.hpp>
#include <crossrank/collective.hpp>
#include <crossrank/collective/elements.hpp>
#include <crossrank/collective/range.hpp>
#include <crossrank/tensor/clone_on_write.hpp>
#include <crossrank/tensor/concat.hpp>
#include <crossrank/cuda.hpp>
#include <crossrank/device.hpp>
#include <crossrank/dlpack.hpp>
#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/element_range.hpp>
#include <crossrank/error.hpp>
#include <crossrank/group.hpp>
#include <crossrank/helpers.hpp>
#include <crossrank/json.hpp>
#include <crossrank/log.hpp>
#include <crossrank/checkpoint/memory_export.hpp>
#include <crossrank/checkpoint/parts.hpp>
#include <crossrank/mesh.hpp>
#include <crossrank/message_queue.hpp>
#include <crossrank/nccl.hpp>
#include <crossrank/objects.hpp>
#include <crossrank/parallel.hpp>
#include <crossrank/checkpoint/placements.hpp>
#include <crossrank/process_group.hpp>
#include <crossrank/safetensors.hpp>
#include <crossrank/serialize.hpp>
#include <crossrank/tensor/shape.hpp>
#include <crossrank/split_config.hpp>
#include <crossrank/state.hpp>
#include <crossrank/statistics.hpp>
#include <crossrank/stream.hpp>
#include <crossrank/tensor.hpp>
#include <crossrank/tensor_dict.hpp>
#include <crossrank/transforms.hpp>
#include <crossrank/transforms/checkpoint.hpp>
#include <crossrank/transforms/fully_shard.hpp>
#include <crossrank/version.hpp>
#include <crossrank/workspace.hpp>

/// Moves configs and weights between the ranks of one job.
namespace crossrank {}

// Define CROSSRANK_NO_XR before the include if the name `xr` is already in use.
#ifndef CROSSRANK_NO_XR
namespace xr = crossrank;
#endif
