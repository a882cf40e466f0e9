// refused: ElementRangeLike
#include <vector>

#include <crossrank/collective.hpp>

int main() {
  std::vector<float> all(6);
  std::vector<int> const mine(3);
  crossrank::Collective().all_gather(all, mine);
}
