#pragma once
#include <string>

/// A device transport of our own beside NCCL, between ranks that are threads of one process with a GPU each.
///
/// A call copies its input to page-locked host memory in the order of the stream. A host function of the stream then
/// meets those of the other ranks, as kernels of NCCL do, and combines what they hold. A last copy brings the result
/// back. So the host never waits, and graphs can contain the calls.
namespace crossrank::test {

inline constexpr char const* thread_transport_name = "threads";

/// Lets the groups of this process use the transport.
void add_thread_transport();

/// Lets calls block until their stream has done its work, as a driver does while its queue of launches is full.
void block_launches();

/// Makes all transports of this process report a failure.
void fail_thread_transports(std::string const& message);

}  // namespace crossrank::test
