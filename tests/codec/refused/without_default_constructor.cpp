// refused: a received object is default-constructed, then filled
#include <crossrank/objects.hpp>

struct Batch {
  explicit Batch(int its_id) : id(its_id) {}
  int id;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(id);
  }
};

int main() { static_cast<void>(crossrank::Collective().recv_object<Batch>(0)); }
