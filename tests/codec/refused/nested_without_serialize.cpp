// refused: cereal could not find any output serialization functions
#include <crossrank/objects.hpp>

struct Batch {
  int id = 0;
};

int main() { crossrank::Collective().send_object(std::vector<Batch>(1), 0); }
