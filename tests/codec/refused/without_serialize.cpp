// refused: cereal cannot serialize this type; give it `template <class A> void serialize(A& a)
#include <crossrank/helpers.hpp>

struct Batch {
  int id = 0;
};

int main() {
  static_cast<void>(crossrank::compute_and_broadcast(crossrank::Collective(), [] { return Batch{}; }));
}
