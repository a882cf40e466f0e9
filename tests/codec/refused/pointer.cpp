// refused: a pointer means nothing on another rank
#include <crossrank/objects.hpp>

int main() {
  int number = 0;
  static_cast<void>(crossrank::Collective().broadcast_object(&number));
}
