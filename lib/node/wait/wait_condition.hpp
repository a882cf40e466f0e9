#pragma once

namespace crossrank::node {

/// The event that a member of a group waits for: a barrier round, or messages.
struct WaitCondition {
  virtual ~WaitCondition() = default;
  /// Returns whether the wait can end. May do work that brings this about.
  [[nodiscard]] virtual bool done() = 0;
  /// Returns whether the condition cannot hold before this member does something.
  [[nodiscard]] virtual bool waits_for(int member) = 0;
  /// Returns whether any one of these members can make the condition hold. Then a slow one is no reason to give up
  /// while another makes progress.
  [[nodiscard]] virtual bool any_member_suffices() { return false; }
};

}  // namespace crossrank::node
