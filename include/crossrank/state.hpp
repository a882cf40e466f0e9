#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/export.hpp>
#include <crossrank/json.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// Tensors by name, in the order in which the names were added.
///
/// Local. Finding, adding and erasing cost the same for any number of entries. Copying copies views, not bytes.
///
/// A reference to an entry is valid until that entry is erased, so `dict["new"] = dict.at("old")` works. Iterators are
/// valid until the next name is added or erased.
///
/// A tensor can be replaced in place, by name or through an iterator; that changes only this dictionary. To write a
/// tensor's bytes use `Tensor::as_mutable()`. All tensors of this process that view the same bytes then change. Follows
/// PyTorch's state dict.
class CROSSRANK_EXPORT StateDict {
 public:
  /// A name and its tensor.
  using value_type = std::pair<std::string const, Tensor>;

 private:
  using Slot = value_type*;  ///< null where an entry was erased

 public:
  /// Visits the entries in order.
  class CROSSRANK_EXPORT const_iterator {
   public:
    /// @cond the members that the standard library asks of an iterator
    using value_type = StateDict::value_type;
    using reference = value_type const&;
    using pointer = value_type const*;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;

    const_iterator() noexcept = default;
    reference operator*() const noexcept;
    pointer operator->() const noexcept { return &**this; }
    const_iterator& operator++() noexcept;
    const_iterator operator++(int) noexcept;
    bool operator==(const_iterator const&) const noexcept = default;
    /// @endcond

   private:
    friend class StateDict;
    const_iterator(Slot const* at, Slot const* end) noexcept;
    Slot const* at_ = nullptr;
    Slot const* end_ = nullptr;
  };

  /// Visits the entries in order; their tensors may be replaced.
  class CROSSRANK_EXPORT iterator {
   public:
    /// @cond the members that the standard library asks of an iterator
    using value_type = StateDict::value_type;
    using reference = value_type&;
    using pointer = value_type*;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;

    iterator() noexcept = default;
    // NOLINTNEXTLINE(google-explicit-constructor): as iterators of the standard library do
    operator const_iterator() const noexcept { return at_; }
    reference operator*() const noexcept;
    pointer operator->() const noexcept { return &**this; }
    iterator& operator++() noexcept;
    iterator operator++(int) noexcept;
    bool operator==(iterator const&) const noexcept = default;
    /// @endcond

   private:
    friend class StateDict;
    explicit iterator(const_iterator at) noexcept : at_(at) {}
    const_iterator at_{};
  };

  /// Makes an empty dictionary.
  StateDict() noexcept;
  /// Makes a dictionary of the listed entries. Of entries with the same name, the last one counts.
  StateDict(std::initializer_list<value_type> entries);
  /// Copies names and views.
  StateDict(StateDict const&);
  /// Takes over the entries of another dictionary.
  StateDict(StateDict&&) noexcept;
  /// Replaces the entries by copies of names and views.
  StateDict& operator=(StateDict const&);
  /// Replaces the entries by those of another dictionary.
  StateDict& operator=(StateDict&&) noexcept;
  /// Drops the views.
  ~StateDict();

  /// Returns the tensor called `name`. `UsageError` when there is none.
  [[nodiscard]] Tensor const& at(std::string_view name) const;
  /// Returns the tensor called `name`, to be replaced. `UsageError` when there is none.
  [[nodiscard]] Tensor& at(std::string_view name);
  /// Returns the tensor called `name`, or null.
  [[nodiscard]] Tensor const* find(std::string_view name) const noexcept;
  /// Returns the tensor called `name`, to be replaced, or null.
  [[nodiscard]] Tensor* find(std::string_view name) noexcept;
  /// Returns the tensor called `name`, to be replaced. Like `std::map`, adds an unknown name, at the end and with an
  /// undefined tensor.
  [[nodiscard]] Tensor& operator[](std::string_view name);
  /// Returns the tensor called `name`. `UsageError` when there is none.
  [[nodiscard]] Tensor const& operator[](std::string_view name) const { return at(name); }
  /// Returns whether there is a tensor called `name`.
  [[nodiscard]] bool contains(std::string_view name) const noexcept { return find(name) != nullptr; }
  /// Adds a tensor at the end unless the name exists. Returns the entry of that name, and whether it was added.
  std::pair<iterator, bool> insert(std::string name, Tensor tensor);
  /// Adds an entry at the end unless its name exists. Returns the entry of that name, and whether it was added.
  std::pair<iterator, bool> insert(value_type entry) { return insert(entry.first, std::move(entry.second)); }
  /// Adds a tensor at the end, or replaces the tensor with that name in its place.
  void insert_or_assign(std::string name, Tensor tensor);
  /// Erases the entry called `name`. Returns whether there was one.
  bool erase(std::string_view name);
  /// Erases all entries.
  void clear() noexcept;
  /// Reserves memory for `count` entries in all.
  void reserve(std::size_t count);
  /// Returns the number of entries.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns whether there is no entry.
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Returns the number of bytes of all tensors. Bytes that several tensors share count each time.
  [[nodiscard]] std::size_t nbytes() const noexcept;
  /// Returns an iterator to the first entry.
  [[nodiscard]] const_iterator begin() const noexcept;
  /// Returns an iterator past the last entry.
  [[nodiscard]] const_iterator end() const noexcept;
  /// Returns an iterator to the first entry, to replace its tensor.
  [[nodiscard]] iterator begin() noexcept;
  /// Returns an iterator past the last entry.
  [[nodiscard]] iterator end() noexcept;

 private:
  /// Returns the slot of `name`, and whether it is new. A new slot takes `tensor`; otherwise `tensor` is not moved
  /// from.
  std::pair<Slot const*, bool> try_emplace(std::string&& name, Tensor& tensor);
  /// Makes an entry in memory of its own, which no other entry's coming or going moves.
  Slot make_entry(std::string&& name, Tensor& tensor);
  /// Adds memory for `count` entries.
  void add_chunk(std::size_t count);
  [[nodiscard]] std::size_t probe(std::string_view name) const noexcept;
  /// Removes the holes and reserves space for `count` entries.
  void rebuild(std::size_t count);

  std::vector<std::vector<value_type>> chunks_{};  ///< the entries' memory; a chunk never grows past its capacity
  std::vector<value_type*> free_{};                ///< the erased entries in `chunks_`, without their tensors
  std::vector<Slot> slots_{};           ///< entries in order; an erased one stays as a hole until there are many
  std::vector<std::uint32_t> index_{};  ///< open addressing: 0 free, else position in `slots_` + 1
  std::size_t size_ = 0;
};

/// The config and weights that one rank contributes.
struct RankState {
  Json config{};        ///< any JSON value, also null: UTF-8 text of at most 32 levels and 16 MiB, else a `UsageError`
  StateDict weights{};  ///< tensors by name, in order
};

}  // namespace crossrank
