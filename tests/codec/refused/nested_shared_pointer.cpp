// refused: a pointer means nothing on another rank
#include <cereal/types/memory.hpp>
#include <crossrank/serialize.hpp>

struct Holder {
  std::vector<std::shared_ptr<int>> pointers{};
  template <class Archive>
  void serialize(Archive& archive) {
    archive(pointers);
  }
};

int main() { return static_cast<int>(crossrank::encode_object(Holder{}).size()); }
