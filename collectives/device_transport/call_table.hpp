#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/algorithms/call.hpp"
#include "lib/node/group/call_variants.hpp"
#include "lib/node/group/group.hpp"
#include "lib/node/memory/arena.hpp"

namespace crossrank::device {

/// The calls that the ranks of a group make on their GPUs, in shared memory, so that nobody waits to compare them.
///
/// Each rank notes a call, then compares it with what the others have noted under the same number, and enqueues it if
/// they agree. So of two ranks that disagree, the later one notices it and enqueues nothing. The call of the earlier
/// one is on its stream, waits for the later one, and does not run to its end: the watchdog aborts it.
///
/// A rank is at most 255 calls ahead of the others. All ranks of the group are on one host.
class CallTable {
 public:
  /// Where a rank's notes are in its arena.
  struct Row {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;  ///< 0: the rank has none
  };
  /// Ranks that are to blame, and why.
  struct Disagreement {
    std::vector<int> ranks{};
    std::string text{};
  };

  /// Allocates this rank's row. `group` makes the collectives on the CPU until `leave_group`, and `keeper` has the same
  /// ranks: the row stays until all of them have dropped `keeper`. `UnavailableError` without memory.
  CallTable(node::Group& group, std::shared_ptr<node::Group> keeper);
  ~CallTable();
  CallTable(CallTable const&) = delete;
  CallTable& operator=(CallTable const&) = delete;

  [[nodiscard]] Row const& own_row() const noexcept { return own_; }
  /// Finds the rows of all ranks. Call it before the first `add`. `FormatError` for a row outside of a rank's arena.
  void open(std::span<Row const> rows);

  /// Returns the ranks for which the next call must wait, because it is too far ahead of theirs.
  [[nodiscard]] std::vector<int> ranks_behind() const;
  /// Notes the next call of this rank, and compares it with those of the ranks that have made theirs. `ranks_behind`
  /// must be empty.
  [[nodiscard]] std::optional<Disagreement> add(algorithms::Call const& call);
  /// Finds a rank that makes a collective on the CPU in place of a call of this rank. Any thread.
  [[nodiscard]] std::optional<Disagreement> find_call_on_cpu() const;
  /// Throws the error of the group on the CPU if it has failed: a call that nobody waits for would not notice it.
  void throw_if_failed(char const* operation) const;
  /// Makes the group on the CPU fail, in which a rank may wait for the others. Any thread.
  void fail_group(Disagreement const& disagreement) const noexcept;
  /// Forgets the group on the CPU, which ends. Any thread.
  void leave_group() noexcept;

 private:
  struct Header;
  struct Note;
  [[nodiscard]] std::uint64_t made_by(int rank) const noexcept;
  [[nodiscard]] Note const& note_of(int rank, std::uint64_t number) const noexcept;
  [[nodiscard]] std::span<std::uint64_t const> counts_of(int rank, std::uint64_t number) const noexcept;
  [[nodiscard]] std::string call_in_words(int rank, std::uint64_t number) const;
  void write(algorithms::Call const& call, std::uint64_t number);
  [[nodiscard]] std::optional<Disagreement> compare(std::uint64_t number) const;
  [[nodiscard]] std::optional<Disagreement> compare_counts(int other, std::uint64_t number) const;
  [[nodiscard]] static bool are_same(Note const& one, Note const& other) noexcept;
  [[nodiscard]] Disagreement describe_difference(std::uint64_t number) const;
  /// Both need the mutex, and `group_`.
  [[nodiscard]] bool calls_on_cpu(int rank, std::uint64_t number) const;
  [[nodiscard]] Disagreement describe_call_on_cpu(int first, std::uint64_t number) const;
  [[nodiscard]] static Disagreement blame_fewer(std::vector<node::CallVariant> variants);

  std::shared_ptr<node::Group> const keeper_;
  int const ranks_;
  std::size_t const note_bytes_;
  node::Slot slot_{};
  Row own_{};
  std::vector<std::byte const*> rows_{};  ///< of all ranks
  mutable std::mutex mutex_{};            ///< guards the members below
  node::Group* group_;                    ///< null once it has ended
  std::vector<std::uint64_t> rounds_;     ///< of `group_`, before each of the last calls of this rank
};

}  // namespace crossrank::device
