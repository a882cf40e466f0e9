#pragma once

namespace crossrank::workspace {

class NfsMedium;

/// Calls `finish` of every medium that is still there when the process exits. Process-wide.
void finish_at_exit(NfsMedium& medium);
/// Forgets a medium that is about to go.
void forget_at_exit(NfsMedium& medium) noexcept;

}  // namespace crossrank::workspace
