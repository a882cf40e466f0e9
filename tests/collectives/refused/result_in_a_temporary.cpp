// refused: MutableElementRange
#include <vector>

#include <crossrank/collective.hpp>

int main() { crossrank::Collective().broadcast(std::vector<float>(3)); }
