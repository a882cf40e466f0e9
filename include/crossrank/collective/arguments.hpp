#pragma once
#include <cstdint>
#include <span>

namespace crossrank {

/// Names the root of a collective: the rank that sends to all others or receives from them.
struct Root {
  int root = 0;  ///< rank in the group
};

/// Names a message between two ranks. Sender and receiver give the same tag.
struct Tag {
  std::uint32_t tag = 0;  ///< any number
};

/// Names the two partners of `Collective::sendrecv`.
struct Partners {
  int dst = 0;            ///< the rank that receives this rank's message
  int src = 0;            ///< the rank that sends to this rank
  std::uint32_t tag = 0;  ///< tag of both messages
};

/// Says how the first dimension is divided among the ranks. All ranks pass the same values.
struct Rows {
  std::span<std::int64_t const> rows{};  ///< entry r: number of rows of rank r; one entry per rank
  int root = 0;                          ///< the root of `gatherv` and `scatterv`
};

/// Says how `Collective::all_to_allv` divides the first dimensions of its two tensors.
struct ExchangedRows {
  std::span<std::int64_t const> send{};     ///< entry r: number of rows of `in` that go to rank r
  std::span<std::int64_t const> receive{};  ///< entry r: number of rows of `out` that come from rank r
};

}  // namespace crossrank
