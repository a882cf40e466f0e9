#include <crossrank/nccl.hpp>

#include <utility>

#include <crossrank/error.hpp>

#include "collectives/core/group_state.hpp"
#include "collectives/core/named_calls.hpp"
#include "collectives/nccl/nccl_library.hpp"

namespace crossrank::nccl {

void prefer_library(std::string path) { prefer_nccl_library(std::move(path)); }

LibraryInfo library_info() {
  auto const& library = nccl_library();
  return {.path = library.path, .version = library.version, .missing = library.missing};
}

std::optional<ProcessGroup> process_group(Collective const& group) {
  auto const& devices = detail::NamedCalls(group, "nccl.process_group").state().devices;
  auto communicator = devices.backend() == "nccl" ? devices.native() : nullptr;
  if (!communicator) return {};
  return ProcessGroup{.vendor = "nccl", .handle = std::move(communicator)};
}

ncclComm* communicator_of(ProcessGroup const& group) {
  if (group.vendor == "nccl") return static_cast<ncclComm*>(group.handle.get());
  throw UsageError({.operation = "nccl.communicator_of",
                    .message = "NCCL does not carry this group",
                    .expected = "nccl",
                    .got = std::string(group.vendor)});
}

}  // namespace crossrank::nccl
