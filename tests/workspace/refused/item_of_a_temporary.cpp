// refused: give the range a name first: its items die with it
#include <crossrank/parallel.hpp>

int main() {
  return static_cast<int>(crossrank::get_tensors_parallel(crossrank::Tensor(), crossrank::Collective())[0].numel());
}
