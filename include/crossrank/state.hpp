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

/// Tensors by name, in the order in which the names came.
///
/// Local. Finding, adding and erasing cost the same however many there are. References and iterators hold until the
/// next change of names. Copying copies views, not bytes.
///
/// A tensor in it may be replaced in place, by name or while the entries are walked: that changes what the name stands
/// for in this dictionary alone. Its bytes are written through `Tensor::as_mutable()`, which refuses those that others
/// hold.
class CROSSRANK_EXPORT StateDict {
  struct Slot;

 public:
  using value_type = std::pair<std::string const, Tensor>;

  /// Walks the entries in order; each is a name and a tensor.
  class CROSSRANK_EXPORT const_iterator {
   public:
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

   private:
    friend class StateDict;
    const_iterator(Slot const* at, Slot const* end) noexcept;
    Slot const* at_ = nullptr;
    Slot const* end_ = nullptr;
  };

  /// The same for a dictionary that may be changed: the tensors of its entries may be replaced.
  class CROSSRANK_EXPORT iterator {
   public:
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

   private:
    friend class StateDict;
    explicit iterator(const_iterator at) noexcept : at_(at) {}
    const_iterator at_{};
  };

  StateDict() noexcept;
  StateDict(std::initializer_list<value_type> entries);
  StateDict(StateDict const&);
  StateDict(StateDict&&) noexcept;
  StateDict& operator=(StateDict const&);
  StateDict& operator=(StateDict&&) noexcept;
  ~StateDict();

  /// The tensor called `name`; `UsageError` when there is none.
  [[nodiscard]] Tensor const& at(std::string_view name) const;
  [[nodiscard]] Tensor& at(std::string_view name);
  /// The same, or null.
  [[nodiscard]] Tensor const* find(std::string_view name) const noexcept;
  [[nodiscard]] Tensor* find(std::string_view name) noexcept;
  /// The tensor called `name`; a name that is not there is added at the end with `Tensor{}`, as in `std::map`. In a
  /// dictionary that cannot be changed it is `at(name)`.
  [[nodiscard]] Tensor& operator[](std::string_view name);
  [[nodiscard]] Tensor const& operator[](std::string_view name) const { return at(name); }
  [[nodiscard]] bool contains(std::string_view name) const noexcept { return find(name) != nullptr; }
  /// Adds a tensor at the end unless there is one of that name: where the name stands now, and whether it was added.
  std::pair<iterator, bool> insert(std::string name, Tensor tensor);
  std::pair<iterator, bool> insert(value_type entry) { return insert(entry.first, std::move(entry.second)); }
  /// Adds a tensor at the end, or replaces the one of that name where it stands.
  void insert_or_assign(std::string name, Tensor tensor);
  /// Whether there was one.
  bool erase(std::string_view name);
  void clear() noexcept;
  /// Makes room for `count` entries in all.
  void reserve(std::size_t count);
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  /// Bytes of all tensors together, shared ones counted each time.
  [[nodiscard]] std::size_t nbytes() const noexcept;
  [[nodiscard]] const_iterator begin() const noexcept;
  [[nodiscard]] const_iterator end() const noexcept;
  [[nodiscard]] iterator begin() noexcept;
  [[nodiscard]] iterator end() noexcept;

 private:
  /// The slot of `name`, and whether it was made now, with `tensor` in it; `tensor` is not touched otherwise.
  std::pair<Slot*, bool> try_emplace(std::string&& name, Tensor& tensor);
  [[nodiscard]] std::size_t probe(std::string_view name) const noexcept;
  void index_all(std::size_t room);
  /// Leaves the holes out and makes room for `count` entries.
  void rebuild(std::size_t count);

  std::vector<Slot> slots_;             ///< entries in order; erased ones stay as holes until there are many
  std::vector<std::uint32_t> index_{};  ///< open addressing: 0 free, else position in `slots_` + 1
  std::size_t size_ = 0;
};

/// What one rank hands over: values for people and programs, and weights.
struct RankState {
  Json config{};        ///< any JSON value of UTF-8 text and at most 32 levels, else a `UsageError`; null is a value
  StateDict weights{};  ///< by name, in order
};

}  // namespace crossrank

#include <crossrank/tensor_dict.hpp>
