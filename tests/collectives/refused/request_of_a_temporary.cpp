// refused: BorrowedElementRange
#include <vector>

#include <crossrank/collective.hpp>

int main() { static_cast<void>(crossrank::Collective().isend(std::vector<float>(3), 0)); }
