#pragma once
#include <cstddef>
#include <iterator>

namespace crossrank::codec {

/// Input for nlohmann's lexer that tells how far it has read, which its SAX events do not say.
class CountingInput {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = char const*;
  using reference = char const&;

  CountingInput() = default;
  /// `*cursor` follows the iterator; null for an end.
  CountingInput(char const* at, char const** cursor) : at_(at), cursor_(cursor) {}

  reference operator*() const { return *at_; }
  CountingInput& operator++() {
    ++at_;
    if (cursor_ != nullptr) *cursor_ = at_;
    return *this;
  }
  CountingInput operator++(int) {
    auto const before = *this;
    ++*this;
    return before;
  }
  bool operator==(CountingInput const& other) const { return at_ == other.at_; }

 private:
  char const* at_ = nullptr;
  char const** cursor_ = nullptr;
};

}  // namespace crossrank::codec
