#pragma once
#include <cstddef>
#include <iterator>

namespace crossrank::codec {

/// Input for nlohmann's lexer that records how far the lexer has read. Its SAX events do not give positions.
class CountingInput {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = char const*;
  using reference = char const&;

  CountingInput() = default;
  /// Makes an iterator that `*cursor` follows. `cursor` is null for an end iterator.
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
