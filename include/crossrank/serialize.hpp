#pragma once
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <cereal/cereal.hpp>
#include <cereal/types/array.hpp>
#include <cereal/types/common.hpp>
#include <cereal/types/deque.hpp>
#include <cereal/types/list.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/variant.hpp>
#include <cereal/types/vector.hpp>

#include <crossrank/error.hpp>
#include <crossrank/export.hpp>
#include <crossrank/json.hpp>

namespace crossrank {

class Tensor;
class StateDict;
class TensorDict;

/// Identifies the type of an object in its bytes, so that no rank decodes it as another type.
struct TypeTag {
  std::string_view name{};    ///< empty: derived from the type
  std::uint32_t version = 0;  ///< increase it when the meaning of the bytes changes
};

/// The tag of `T`. Specialize it for your own type: `template <> inline constexpr TypeTag type_tag<Batch>{"batch",
/// 2};`
template <class T>
inline constexpr TypeTag type_tag{};

/// The deepest nesting of classes in one object.
inline constexpr int max_object_depth = 256;

namespace detail {

static_assert(std::endian::native == std::endian::little, "objects are sent in little-endian form");

template <class T>
inline constexpr bool is_pointer_like = std::is_pointer_v<T>;
template <class T>
inline constexpr bool is_pointer_like<std::shared_ptr<T>> = true;
template <class T>
inline constexpr bool is_pointer_like<std::weak_ptr<T>> = true;
template <class T, class D>
inline constexpr bool is_pointer_like<std::unique_ptr<T, D>> = true;

/// Fails to compile, with a reason, for a type that cannot be sent even if it can be serialized.
template <class T>
constexpr void require_plain() {
  static_assert(!is_pointer_like<T>, "crossrank: a pointer means nothing on another rank; send the value it points to");
  static_assert(!std::is_polymorphic_v<T>, "crossrank: polymorphic types cannot be sent; send a variant or plain data");
  static_assert(!std::is_same_v<T, long double>, "crossrank: long double differs between machines; send a double");
}

/// Element types for which every bit pattern is a value.
template <class T>
inline constexpr bool is_raw_element = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
                                        !std::is_same_v<T, long double>) ||
                                       std::is_same_v<T, std::byte>;

template <class T>
using Pointee = std::remove_cv_t<std::remove_pointer_t<std::remove_reference_t<T>>>;

/// Whether `cereal::BinaryData<T>` may be copied as bytes. `T` is an element type or a pointer to one. If not, cereal
/// serializes arrays element by element, so that each element is checked.
template <class T>
concept RawData = !std::is_same_v<Pointee<T>, bool> && !std::is_same_v<Pointee<T>, long double>;

}  // namespace detail

/// The archive into which cereal writes objects. `UsageError` for an object that no reader would accept.
class CROSSRANK_EXPORT ObjectWriter : public cereal::OutputArchive<ObjectWriter> {
 public:
  /// Makes an empty archive.
  ObjectWriter();
  /// Discards the written bytes.
  ~ObjectWriter() override;
  ObjectWriter(ObjectWriter const&) = delete;
  ObjectWriter& operator=(ObjectWriter const&) = delete;

  /// Appends bytes.
  void write(void const* data, std::size_t bytes);
  /// Appends a number of elements.
  void write_count(std::uint64_t count);
  /// Appends a JSON value. `UsageError` for more than 32 levels or text that is not UTF-8.
  void write_json(Json const& value);
  /// Counts one more level of nesting. `UsageError` beyond `max_object_depth`.
  void enter();
  /// Counts one level less.
  void leave() noexcept { --depth_; }
  /// Returns the written bytes and empties the archive.
  [[nodiscard]] std::vector<std::byte> take();

 private:
  struct Counted {
    std::size_t at;
    std::uint64_t count;
  };
  std::vector<std::byte> bytes_{};
  std::vector<Counted> counted_{};
  int depth_ = 0;
};

/// The archive from which cereal reads objects. Compares every count with the remaining bytes before it allocates.
/// A `FormatError` gives the byte at which decoding failed.
class CROSSRANK_EXPORT ObjectReader : public cereal::InputArchive<ObjectReader> {
 public:
  /// Reads from `bytes`, which must outlive the archive.
  explicit ObjectReader(std::span<std::byte const> bytes);
  /// Ends the archive; bytes may remain.
  ~ObjectReader() override;
  ObjectReader(ObjectReader const&) = delete;
  ObjectReader& operator=(ObjectReader const&) = delete;

  /// Reads `bytes` bytes. `FormatError` when fewer remain.
  void read(void* data, std::size_t bytes);
  /// Reads a truth value. `FormatError` for a byte other than 0 and 1.
  [[nodiscard]] bool read_bool();
  /// Reads a number of elements of at least `least_bytes` each. `FormatError` when the remaining bytes cannot hold
  /// them.
  [[nodiscard]] std::uint64_t read_count(std::size_t least_bytes = 1);
  /// Reads a JSON value. `FormatError` when it is malformed.
  [[nodiscard]] Json read_json();
  /// Counts one more level of nesting. `FormatError` beyond `max_object_depth`.
  void enter();
  /// Counts one level less.
  void leave() noexcept { --depth_; }
  /// Returns the number of remaining bytes.
  [[nodiscard]] std::size_t remaining() const noexcept { return bytes_.size() - at_; }
  /// Returns the number of bytes that have been read.
  [[nodiscard]] std::size_t offset() const noexcept { return at_; }
  /// Throws a `FormatError` when bytes remain.
  void finish() const;
  /// Throws a `FormatError` for the current byte.
  [[noreturn]] void refuse(char const* section, std::string message, std::string expected = {},
                           std::string got = {}) const;

 private:
  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Overloads that cereal finds for these archives in place of its own, because they are more specialized.
/// @cond the hooks of cereal

template <class T>
void prologue(ObjectWriter& writer, T const&) {
  detail::require_plain<T>();
  if constexpr (std::is_class_v<T>) writer.enter();
}
template <class T>
void epilogue(ObjectWriter& writer, T const&) {
  if constexpr (std::is_class_v<T>) writer.leave();
}
template <class T>
void prologue(ObjectReader& reader, T const&) {
  detail::require_plain<T>();
  if constexpr (std::is_class_v<T>) reader.enter();
}
template <class T>
void epilogue(ObjectReader& reader, T const&) {
  if constexpr (std::is_class_v<T>) reader.leave();
}

template <class T>
requires std::is_arithmetic_v<T>
void save(ObjectWriter& writer, T const& value) { writer.write(&value, sizeof value); }
template <class T>
requires std::is_arithmetic_v<T>
void load(ObjectReader& reader, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    value = reader.read_bool();
  } else {
    reader.read(&value, sizeof value);
  }
}

template <class T>
void serialize(ObjectWriter& writer, cereal::NameValuePair<T>& pair) {
  writer(pair.value);
}
template <class T>
void serialize(ObjectReader& reader, cereal::NameValuePair<T>& pair) {
  reader(pair.value);
}
template <class T>
void save(ObjectWriter& writer, cereal::SizeTag<T> const& tag) {
  writer.write_count(static_cast<std::uint64_t>(tag.size));
}
template <class T>
void load(ObjectReader& reader, cereal::SizeTag<T>& tag) {
  tag.size = reader.read_count();
}
template <detail::RawData T>
void save(ObjectWriter& writer, cereal::BinaryData<T> const& data) {
  writer.write(data.data, static_cast<std::size_t>(data.size));
}
template <detail::RawData T>
void load(ObjectReader& reader, cereal::BinaryData<T>& data) {
  reader.read(data.data, static_cast<std::size_t>(data.size));
}

template <class J>
requires std::same_as<J, Json>
void save(ObjectWriter& writer, J const& value) { writer.write_json(value); }
template <class J>
requires std::same_as<J, Json>
void load(ObjectReader& reader, J& value) { value = reader.read_json(); }

namespace detail {

template <class Sequence>
void load_sequence(ObjectReader& reader, Sequence& out) {
  auto const count = reader.read_count();
  out.clear();
  for (std::uint64_t i = 0; i < count; ++i) {  // the list grows with the bytes, not with an announced count
    typename Sequence::value_type value{};
    reader(value);
    out.push_back(std::move(value));
  }
}

}  // namespace detail

template <class T, class A>
void save(ObjectWriter& writer, std::vector<T, A> const& values) {
  writer.write_count(values.size());
  if constexpr (detail::is_raw_element<T>) {
    writer.write(values.data(), values.size() * sizeof(T));
  } else {
    for (T const& value : values) writer(value);
  }
}
template <class T, class A>
void load(ObjectReader& reader, std::vector<T, A>& values) {
  if constexpr (detail::is_raw_element<T>) {
    values.resize(static_cast<std::size_t>(reader.read_count(sizeof(T))));
    reader.read(values.data(), values.size() * sizeof(T));
  } else {
    detail::load_sequence(reader, values);
  }
}
template <class A>
void save(ObjectWriter& writer, std::vector<bool, A> const& values) {
  writer.write_count(values.size());
  for (bool const value : values) writer(value);
}
template <class A>
void load(ObjectReader& reader, std::vector<bool, A>& values) {
  detail::load_sequence(reader, values);
}
template <class T, class A>
void load(ObjectReader& reader, std::deque<T, A>& values) {
  detail::load_sequence(reader, values);
}
template <class T, class A>
void load(ObjectReader& reader, std::list<T, A>& values) {
  detail::load_sequence(reader, values);
}
// cereal's own overload reverses entries with equal keys.
template <class K, class V, class C, class A>
void load(ObjectReader& reader, std::multimap<K, V, C, A>& values) {
  auto const count = reader.read_count();
  values.clear();
  for (std::uint64_t i = 0; i < count; ++i) {
    std::pair<K, V> entry{};
    reader(cereal::make_map_item(entry.first, entry.second));
    values.insert(values.end(), std::move(entry));
  }
}
/// @endcond

namespace detail {

/// Writes what comes before an object: name and version of its type.
CROSSRANK_EXPORT void write_envelope(ObjectWriter& writer, std::string_view name, std::uint32_t version);
/// Reads it. `FormatError` when the object is of another type or version.
CROSSRANK_EXPORT void check_envelope(ObjectReader& reader, std::string_view name, std::uint32_t version);
/// Throws the error of bytes that the object's own reader refuses.
[[noreturn]] CROSSRANK_EXPORT void refuse_object(ObjectReader const& reader, std::string_view name, char const* why);

template <class T>
struct TypeName {
  static std::string get() { return typeid(T).name(); }
};
template <class T>
[[nodiscard]] std::string type_name() {
  if constexpr (!type_tag<T>.name.empty()) {
    return std::string(type_tag<T>.name) + (type_tag<T>.version == 0 ? "" : ":" + std::to_string(type_tag<T>.version));
  } else if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return (std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u") + std::to_string(8 * sizeof(T));
  } else {
    return TypeName<T>::get();
  }
}
template <class... T>
[[nodiscard]] std::string type_names(char const* outer) {
  std::string out = outer;
  ((out += (out.back() == '<' ? "" : ",") + type_name<T>()), ...);
  return out + ">";
}
template <>
struct TypeName<std::string> {
  static std::string get() { return "string"; }
};
template <>
struct TypeName<Json> {
  static std::string get() { return "json"; }
};
template <class T, class A>
struct TypeName<std::vector<T, A>> {
  static std::string get() { return type_names<T>("list<"); }
};
template <class T, std::size_t N>
struct TypeName<std::array<T, N>> {
  static std::string get() { return type_names<T>("array<") + std::to_string(N); }
};
template <class T>
struct TypeName<std::optional<T>> {
  static std::string get() { return type_names<T>("optional<"); }
};
template <class A, class B>
struct TypeName<std::pair<A, B>> {
  static std::string get() { return type_names<A, B>("tuple<"); }
};
template <class... T>
struct TypeName<std::tuple<T...>> {
  static std::string get() { return type_names<T...>("tuple<"); }
};
template <class K, class V, class C, class A>
struct TypeName<std::map<K, V, C, A>> {
  static std::string get() { return type_names<K, V>("map<"); }
};

/// Returns the name without the version.
template <class T>
[[nodiscard]] std::string_view tag_name() {
  if constexpr (!type_tag<T>.name.empty()) {
    return type_tag<T>.name;
  } else {
    // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): never destroyed, as it is used until the last message
    static auto const* const name = new std::string(type_name<T>());
    return *name;
  }
}

}  // namespace detail
}  // namespace crossrank

CEREAL_SETUP_ARCHIVE_TRAITS(crossrank::ObjectReader, crossrank::ObjectWriter)

namespace crossrank {

/// A type that can be sent as an object: scalars, strings, `Json`, containers of such, and any type that cereal can
/// serialize.
template <class T>
concept Object =
    std::same_as<T, std::remove_cvref_t<T>> && std::default_initializable<T> && !detail::is_pointer_like<T> &&
    !std::is_polymorphic_v<T> && !std::same_as<T, long double> &&
    cereal::traits::is_output_serializable<T, ObjectWriter>::value &&
    cereal::traits::is_input_serializable<T, ObjectReader>::value;

namespace detail {

/// Number of ways in which cereal can serialize a type, including its own for types of the standard library.
template <class T>
inline constexpr int ways_to_write = cereal::traits::detail::count_output_serializers<T, ObjectWriter>::value;
template <class T>
inline constexpr int ways_to_read = cereal::traits::detail::count_input_serializers<T, ObjectReader>::value;

/// Fails to compile for a type that is not an `Object`, with the reason.
template <class T>
constexpr void require_object() {
  require_plain<T>();
  if constexpr (!is_pointer_like<T> && !std::is_polymorphic_v<T> && !std::is_same_v<T, long double>) {
    static_assert(!std::is_same_v<T, Tensor> && !std::is_same_v<T, StateDict> && !std::is_same_v<T, TensorDict>,
                  "crossrank: a tensor is not an object; use broadcast(), send(), a TensorDict or a queue");
    static_assert(std::is_same_v<T, std::remove_cvref_t<T>>,
                  "crossrank: an object is sent by value; leave out const and &");
    static_assert(
        std::default_initializable<T>,
        "crossrank: a received object is default-constructed, then filled; give the type a default constructor");
    static_assert(
        ways_to_write<T> > 0 && ways_to_read<T> > 0,
        "crossrank: cereal cannot serialize this type; give it `template <class A> void serialize(A& a) { "
        "a(member, ...); }` or save and load, include cereal's header for it if it is of the standard library, "
        "and specialize type_tag<T> if sender and receiver are different programs");
    static_assert(ways_to_write<T> <= 1 && ways_to_read<T> <= 1,
                  "crossrank: there are several ways to serialize this type; keep serialize, or save and load");
    static_assert(Object<T>, "crossrank: cereal cannot serialize this type");
  }
}

}  // namespace detail

/// Returns the bytes of an object, with the tag and version of its type.
///
/// Local; copies the object once, and JSON twice. The size has no limit. `UsageError` for an object that no reader
/// would accept: JSON of more than 32 levels, more than `max_object_depth` levels, elements without bytes. A type that
/// is not an `Object` does not compile, and the assertion gives the reason.
template <class T>
[[nodiscard]] std::vector<std::byte> encode_object(T const& value) {
  detail::require_object<T>();
  ObjectWriter writer;
  detail::write_envelope(writer, detail::tag_name<T>(), type_tag<T>.version);
  writer(value);
  return writer.take();
}

/// Returns the object in `bytes`, which may come from an untrusted source.
///
/// Local. Uses memory in proportion to the bytes. `FormatError` unless the bytes are exactly one object of this type
/// and version.
template <class T>
[[nodiscard]] T decode_object(std::span<std::byte const> bytes) {
  detail::require_object<T>();
  ObjectReader reader(bytes);
  detail::check_envelope(reader, detail::tag_name<T>(), type_tag<T>.version);
  T value{};
  try {
    reader(value);
  } catch (cereal::Exception const& e) {
    detail::refuse_object(reader, detail::tag_name<T>(), e.what());
  }
  reader.finish();
  return value;
}

}  // namespace crossrank
