// refused: a tensor is not an object
#include <crossrank/objects.hpp>

int main() { static_cast<void>(crossrank::Collective().broadcast_object(crossrank::Tensor())); }
