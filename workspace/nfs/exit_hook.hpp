#pragma once

namespace crossrank::workspace {

class FileStateStore;

/// Calls `finish` of every store that is still there when the process exits. Process-wide.
void finish_at_exit(FileStateStore& store);
/// Forgets a store that is about to go.
void forget_at_exit(FileStateStore& store) noexcept;

}  // namespace crossrank::workspace
