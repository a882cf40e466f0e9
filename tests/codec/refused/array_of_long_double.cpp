// refused: long double differs between machines
#include <array>

#include <crossrank/serialize.hpp>

int main() { return static_cast<int>(crossrank::encode_object(std::array<long double, 1>{}).size()); }
