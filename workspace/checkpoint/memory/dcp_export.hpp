#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <crossrank/json.hpp>

#include "workspace/checkpoint/memory/export_plan.hpp"
#include "workspace/checkpoint/memory/exchange/exported_source.hpp"
#include "workspace/checkpoint/memory/placed_source.hpp"
#include "workspace/checkpoint/write/output_layout.hpp"

namespace crossrank::checkpoint {

/// The keys that lead to a tensor or a value in the dicts that torch restores. Their names are joined by dots.
using DcpPath = std::vector<std::string>;

/// A plain value of a distributed checkpoint. In its path, a key of digits is a place in a list.
struct DcpValue {
  DcpPath path{};
  Json value = nullptr;
};

/// What a distributed checkpoint holds besides the tensors themselves.
struct DcpForm {
  std::function<DcpPath(std::string const& tensor)> path_of{};  ///< where a tensor goes
  std::vector<DcpValue> values{};
};

/// A distributed checkpoint that is to be written: each rank writes its own pieces of the tensors to a file of its own.
struct DcpExport {
  std::vector<OutputFile> files{};                            ///< of the ranks that write any
  std::vector<std::shared_ptr<PlacedSource const>> pieces{};  ///< of each rank
  std::shared_ptr<ExportedSource> source{};                   ///< the pieces of this rank
  std::string metadata{};                                     ///< the text of `.metadata`; only on rank 0
};

/// Lays out a distributed checkpoint. Each rank gets the pieces that it holds; one of the ranks with equal pieces gets
/// them. Whole tensors go to one rank if their pieces are no boxes. Throws `UsageError` for a dtype that torch does not
/// have.
[[nodiscard]] DcpExport lay_out_dcp(ExportPlan const& plan, DcpForm const& form);

/// Returns the bytes of the cells that a unit of a rank's file depends on.
[[nodiscard]] std::vector<CellRange> inputs_of_piece(MergeLayout const& layout, PlacedSource const& pieces,
                                                     WorkUnit const& unit);

}  // namespace crossrank::checkpoint
