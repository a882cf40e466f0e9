// refused: there are several ways to serialize this type
#include <crossrank/objects.hpp>

struct Batch {
  int id = 0;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(id);
  }
};

template <class Archive>
void serialize(Archive& archive, Batch& batch) {
  archive(batch.id);
}

int main() { static_cast<void>(crossrank::Collective().all_gather_objects(Batch{})); }
