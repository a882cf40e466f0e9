// refused: MutableElementRange
#include <vector>

#include <crossrank/collective.hpp>

int main() {
  std::vector<float> const values(3);
  crossrank::Collective().recv(values, 0);
}
