#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/tensor/dtype.hpp>
#include <crossrank/tensor/shape.hpp>

#include "lib/codec/io/chunk_coverage.hpp"

namespace crossrank::codec {

/// The position of an item of a distributed checkpoint. Each item is a torch archive of its own inside a larger file.
struct DcpItem {
  std::string file{};  ///< a plain name in the checkpoint's directory
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// A tensor and its saved pieces, which cover it exactly.
struct DcpTensor {
  std::string name{};
  std::vector<std::string> path{};  ///< keys that lead to it in the saved dicts; empty when not recorded
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::vector<ChunkBox> boxes{};
  std::vector<DcpItem> items{};  ///< one for each box
};

/// A saved object that is not a tensor.
struct DcpObject {
  std::string name{};
  std::vector<std::string> path{};  ///< as in `DcpTensor`; not read
  DcpItem item{};
};

/// The contents of the `.metadata` of a distributed checkpoint.
struct DcpMetadata {
  std::vector<DcpTensor> tensors{};
  std::vector<DcpObject> objects{};
};

/// Reads and checks the metadata. `FormatError` with section ".metadata" and the byte, also for tensors of unsupported
/// dtypes and for items that were transformed when they were written.
[[nodiscard]] DcpMetadata read_dcp_metadata(std::vector<std::byte> pickle, std::string const& source);

}  // namespace crossrank::codec
