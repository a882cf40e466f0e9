// refused: polymorphic types cannot be sent
#include <crossrank/serialize.hpp>

struct Base {
  virtual ~Base() = default;
  template <class Archive>
  void serialize(Archive&) {}
};

int main() { return static_cast<int>(crossrank::encode_object(std::vector<Base>(1)).size()); }
