#pragma once

namespace crossrank::workspace {

class FileStateStore;

/// Calls `store.finish()` at process exit and `store.forget_parents_files()` in forked children, unless
/// `forget_at_exit` is called first.
void finish_at_exit(FileStateStore& store);
/// Unregisters a store that is about to be destroyed.
void forget_at_exit(FileStateStore& store) noexcept;

}  // namespace crossrank::workspace
