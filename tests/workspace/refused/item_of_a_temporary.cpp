// refused: name the range first: its items go with it
#include <crossrank/parallel.hpp>

int main() {
  return static_cast<int>(crossrank::get_tensors_parallel(crossrank::Tensor(), crossrank::Collective())[0].numel());
}
