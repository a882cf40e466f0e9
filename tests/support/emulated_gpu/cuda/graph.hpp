// Graphs behind their handles.
#pragma once

#include <memory>

#include "tests/support/emulated_gpu/cuda/capture.hpp"

namespace emulated {

CUgraph add_graph(std::shared_ptr<Graph> graph);

}  // namespace emulated
