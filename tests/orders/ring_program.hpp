#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lib/node/group/atomic_ops.hpp"
#include "tests/orders/order_explorer.hpp"

/// The ring of a message queue as threads for the explorer. They take the steps of `RingWriter` and `RingReader` in the
/// same order.
namespace crossrank::test::orders {

struct RingPlan {
  std::size_t chunks = 1;
  std::size_t readers = 1;
  std::uint64_t messages = 2;
  bool writes = true;    ///< false: neither a message nor the end ever comes
  bool closes = true;    ///< the writer closes at the end; false: readers know the count
  bool cancels = false;  ///< another thread cancels the first reader, which may then leave early
  // Words whose memory orders are weakened.
  Weaken number = Weaken::nothing;
  Weaken cursor = Weaken::nothing;
  Weaken doorbell = Weaken::nothing;
  Weaken state = Weaken::nothing;
  Weaken cancelled = Weaken::nothing;
  // Steps that are in the wrong order or left out.
  bool polls_before_it_announces = false;
  bool rings_before_it_publishes = false;
  bool reader_does_not_ring = false;
  bool takes_before_it_reads = false;
};

/// A writer, `plan.readers` readers, and a thread that cancels if the plan says so.
class RingProgram {
 public:
  explicit RingProgram(RingPlan const& plan);

  void write();
  void read(std::size_t reader);
  void cancel();

 private:
  struct Chunk {
    explicit Chunk(Weaken weaken) : number(0, weaken) {}
    Word number;
    Plain message{};
  };
  struct Endpoint {
    explicit Endpoint(RingPlan const& plan)
        : cursor(0, plan.cursor), doorbell(0, plan.doorbell), state(0, plan.state) {}
    Word cursor;
    Word doorbell;
    Word state;
  };

  void ring(Word& doorbell);
  void wait(Word& doorbell, std::function<bool()> const& done);
  void deliver(Word& word, std::uint64_t number, std::function<void()> const& ring_all);
  [[nodiscard]] std::uint64_t slowest(std::uint64_t published);

  RingPlan plan_;
  std::vector<std::unique_ptr<Chunk>> chunks_{};
  std::vector<std::unique_ptr<Endpoint>> endpoints_{};  ///< that of the writer comes first
  Word cancelled_;
};

/// Makes the threads of the program for `explore`.
[[nodiscard]] std::vector<Body> threads_of(RingPlan const& plan);

}  // namespace crossrank::test::orders
