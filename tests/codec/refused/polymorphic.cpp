// refused: polymorphic types are not sent
#include <crossrank/message_queue.hpp>

struct Base {
  virtual ~Base() = default;
};

int main() { crossrank::MessageQueue().enqueue(Base{}); }
