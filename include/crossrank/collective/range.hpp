#pragma once
#include <cstddef>
#include <exception>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/export.hpp>

namespace crossrank {

namespace detail {

/// Throws the `UsageError` for an item of a range that was moved from.
[[noreturn]] CROSSRANK_EXPORT void refuse_moved_range();

/// The part of a range that does not depend on the type of its items.
class CROSSRANK_EXPORT RangeBase {
 public:
  virtual ~RangeBase() = default;
  [[nodiscard]] virtual bool is_receiver() const noexcept = 0;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  virtual void close() = 0;
  virtual void abort(std::string_view why) noexcept = 0;
  /// Does the same as `abort` for an exception whose text is not known.
  virtual void abort_unwinding() noexcept = 0;
};

template <class Item>
class RangeItems : public RangeBase {
 public:
  /// Returns the item, which is received at its first use.
  [[nodiscard]] virtual Item const& at(std::size_t index) = 0;
  [[nodiscard]] virtual std::vector<Item> take() = 0;
};

}  // namespace detail

/// The items of a gather, one per rank. Empty except on the receiver.
///
/// A range is open between two barrier rounds of the group. On the receiver it has one item for each requested rank, in
/// that order. An item is received at its first use. The other ranks return from `close()` once the receiver has closed
/// its range, or at once with `Release::lazy`. A range belongs to one scope and one thread. It can be moved, but not
/// copied.
///
/// `close()` runs the second round and throws its errors. On normal exit from the scope, the destructor calls
/// `close()`, so it may throw. When an exception leaves the scope, the destructor aborts the group, so that no rank
/// waits. A closed range is empty; copies of its items stay valid. The error of an item that cannot be received says
/// that the group is not usable, because the group ends when that error leaves the scope.
///
/// Put a loop that may throw inside `consume`, so that the other ranks get the text of the exception. A destructor
/// cannot see the exception; after a plain `for` the others learn only that there was one. `take()` needs no `consume`,
/// as the items outlive the range.
///
///     range.consume([&](auto& items) {
///       for (auto const& item : items) merge(item);  // an exception here reaches every rank with its text
///     });
template <class Item>
class [[nodiscard]] CollectiveRange {
 public:
  /// Visits the items in order and receives each at its first use.
  class iterator {
   public:
    /// @cond the members that the standard library asks of an iterator
    using value_type = Item;
    using reference = Item const&;
    using pointer = Item const*;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::input_iterator_tag;

    iterator() noexcept = default;
    reference operator*() const { return items_->at(index_); }
    pointer operator->() const { return &items_->at(index_); }
    iterator& operator++() noexcept {
      ++index_;
      return *this;
    }
    iterator operator++(int) noexcept {
      auto const before = *this;
      ++index_;
      return before;
    }
    bool operator==(iterator const& other) const noexcept { return index_ == other.index_; }
    /// @endcond

   private:
    friend class CollectiveRange;
    iterator(detail::RangeItems<Item>* items, std::size_t index) noexcept : items_(items), index_(index) {}
    detail::RangeItems<Item>* items_ = nullptr;
    std::size_t index_ = 0;
  };

  /// Makes a range of `items`. For the gathers.
  explicit CollectiveRange(std::unique_ptr<detail::RangeItems<Item>> items) noexcept : items_(std::move(items)) {}
  /// Takes over an open range.
  CollectiveRange(CollectiveRange&& other) noexcept
      : items_(std::move(other.items_)), exceptions_(std::uncaught_exceptions()) {}
  CollectiveRange& operator=(CollectiveRange&&) = delete;
  CollectiveRange(CollectiveRange const&) = delete;
  CollectiveRange& operator=(CollectiveRange const&) = delete;
  /// Closes the range, or aborts the group when an exception is in flight.
  ~CollectiveRange() noexcept(false) {
    if (!items_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      items_->abort_unwinding();
    } else {
      items_->close();
    }
  }

  /// Returns an iterator to the first item.
  [[nodiscard]] iterator begin() { return {items_.get(), 0}; }
  /// Returns an iterator past the last item.
  [[nodiscard]] iterator end() { return {items_.get(), size()}; }
  /// Returns whether this rank receives the items.
  [[nodiscard]] bool is_receiver() const noexcept { return items_ && items_->is_receiver(); }
  /// Returns the number of items; 0 except on the receiver.
  [[nodiscard]] std::size_t size() const noexcept { return items_ ? items_->size() : 0; }
  /// Returns whether there are no items.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns the item at `index`. `UsageError` when it is out of range, or the range was moved from.
  [[nodiscard]] Item const& operator[](std::size_t index) & {
    if (!items_) detail::refuse_moved_range();
    return items_->at(index);
  }
  Item const& operator[](std::size_t) && = delete;  // give the range a name first: its items die with it

  /// Calls `body(*this)`, then closes the range. An exception of `body` reaches the caller unchanged, and every other
  /// rank as an error with its text.
  template <class Body>
  decltype(auto) consume(Body&& body) {
    // NOLINTNEXTLINE(cppcoreguidelines-special-member-functions): an aggregate that stays where it is made
    struct CloseAtEnd {
      CollectiveRange& range;
      int exceptions = std::uncaught_exceptions();
      ~CloseAtEnd() noexcept(false) {
        if (std::uncaught_exceptions() == exceptions) range.close();
      }
    };
    try {
      CloseAtEnd const closing{*this};
      return std::forward<Body>(body)(*this);
    } catch (std::exception const& e) {
      if (items_) items_->abort(e.what());
      throw;
    } catch (...) {
      if (items_) items_->abort("left the range by an exception of an unknown type");
      throw;
    }
  }

  /// Receives all items, closes the range and returns them; an empty list except on the receiver.
  [[nodiscard]] std::vector<Item> take() && { return items_ ? items_->take() : std::vector<Item>(); }
  std::vector<Item> take() const& = delete;  // take() ends the range: write std::move(range).take()

  /// Runs the second barrier round and throws its errors. Idempotent.
  void close() {
    if (items_) items_->close();
  }

 private:
  std::unique_ptr<detail::RangeItems<Item>> items_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace crossrank
