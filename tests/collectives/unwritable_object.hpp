#pragma once
#include <stdexcept>

namespace crossrank::test {

/// An object that cannot be serialized.
struct Unwritable {
  template <class Archive>
  void save(Archive&) const {
    throw std::out_of_range("no such layer");
  }
  template <class Archive>
  void load(Archive&) {}
};

}  // namespace crossrank::test
