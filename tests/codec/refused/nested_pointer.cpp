// refused: a pointer means nothing on another rank
#include <crossrank/serialize.hpp>

struct Holder {
  int* pointer = nullptr;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(pointer);
  }
};

int main() { return static_cast<int>(crossrank::encode_object(Holder{}).size()); }
