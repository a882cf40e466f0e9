// refused: polymorphic types cannot be sent
#include <crossrank/message_queue.hpp>

struct Base {
  virtual ~Base() = default;
};

int main() { crossrank::MessageQueue().enqueue(Base{}); }
