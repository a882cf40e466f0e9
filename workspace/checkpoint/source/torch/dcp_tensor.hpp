#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/io/chunk_coverage.hpp"
#include "lib/codec/torch/dcp_metadata.hpp"

namespace crossrank::checkpoint {

/// Rows of an item of a distributed checkpoint that follow each other: the whole item, or one layer or expert of it.
struct DcpRows {
  codec::DcpItem item{};
  Shape item_shape{};            ///< of the tensor in the item
  std::uint64_t first_byte = 0;  ///< of the rows in the item's row-major bytes
  std::uint64_t bytes = 0;
};

/// A tensor of the model, and where its pieces are.
struct DcpModelTensor {
  std::string name{};      ///< in the model
  std::string saved_as{};  ///< in the checkpoint
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::vector<codec::ChunkBox> boxes{};
  std::vector<DcpRows> rows{};  ///< one for each box
};

}  // namespace crossrank::checkpoint
