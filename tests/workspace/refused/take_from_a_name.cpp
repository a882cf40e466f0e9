// refused: take() ends the range: write std::move(range).take()
#include <crossrank/parallel.hpp>

int main() {
  auto range = crossrank::get_tensors_parallel(crossrank::Tensor(), crossrank::Collective());
  static_cast<void>(range.take());
}
