#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/shape.hpp>

#include "lib/codec/io/chunk_coverage.hpp"

namespace crossrank::codec {

/// Where in a distributed checkpoint an item stands: a torch archive of its own inside a larger file.
struct DcpItem {
  std::string file{};  ///< a plain name in the checkpoint's directory
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// A tensor and the pieces in which it was saved, which tile it exactly.
struct DcpTensor {
  std::string name{};
  std::vector<std::string> path{};  ///< keys on the way to it in the dicts that were saved; none where nothing says so
  Dtype dtype = Dtype::u8;
  Shape shape{};
  std::vector<ChunkBox> boxes{};
  std::vector<DcpItem> items{};  ///< one for each box
};

/// Something that is no tensor.
struct DcpObject {
  std::string name{};
  DcpItem item{};
};

/// What the `.metadata` of a distributed checkpoint says.
struct DcpMetadata {
  std::vector<DcpTensor> tensors{};
  std::vector<DcpObject> objects{};
};

/// Reads and checks it whole. `FormatError` with section ".metadata" and the byte, also for tensors whose dtype no
/// tensor here has and for items that were transformed when they were written.
[[nodiscard]] DcpMetadata read_dcp_metadata(std::vector<std::byte> pickle, std::string const& source);

}  // namespace crossrank::codec
