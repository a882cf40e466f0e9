// The log of calls, the faults that a test asks for, and the reports of misuse.
#pragma once

#include <functional>
#include <string>

#include "tests/support/emulated_gpu/cuda/cuda_abi.hpp"

namespace emulated {

/// Counts a call or an event and returns the error that a test asked for, or success.
CUresult log_call(char const* name);

/// Adds an amount to a counter of its own, such as bytes.
void log_amount(char const* name, unsigned long long amount);

/// Notes that the calling thread has asked for an event. A thread that asks for the same one several times in vain, and
/// then with success, has waited: that counts as "polled_wait".
void note_question(void const* event, bool passed);

/// Reports a misuse of the API that the real driver would not notice.
void report(std::string const& text);

/// Called before each kernel: hangs it or fails it, if a test has asked for that. `aborted` ends the hang.
CUresult begin_kernel(std::function<bool()> const& aborted);

/// Counts of live objects, for the report of leaks at exit.
enum class Kind { allocation, host, stream, event, graph, pool };
void born(Kind kind);
void died(Kind kind);

/// True in a child of the process that called cuInit first.
bool forked();
/// Remembers the calling process as the one that may use the driver.
void claim_process();

}  // namespace emulated
