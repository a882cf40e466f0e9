#include "lib/codec/torch/pickle/pickle_reader.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/codec/torch/pickle/unsupported_globals.hpp"
#include "lib/codec/json/json_text.hpp"
#include "lib/codec/torch/pickle/latin1.hpp"
#include "lib/codec/torch/pickle/pickle_cursor.hpp"
#include "lib/codec/torch/pickle/pickle_validator.hpp"

namespace crossrank::codec {
namespace {

constexpr std::size_t max_global_bytes = 512;
constexpr PickleId absent = ~PickleId{0};

/// Values that exist in every tree, so that their opcodes add none.
constexpr PickleId id_none = 0;
constexpr PickleId id_true = 1;
constexpr PickleId id_false = 2;
constexpr PickleId id_empty_tuple = 3;

/// Executes opcodes with a stack of values, as Python's unpickler does.
class Interpreter {
 public:
  Interpreter(PickleTree& tree, PickleOptions const& options)
      : tree_(tree), options_(options), in_(tree.pickle, options) {
    for (auto const kind : {PickleKind::none, PickleKind::boolean, PickleKind::boolean, PickleKind::tuple})
      tree_.nodes.push_back({.kind = kind});
    tree_.nodes[id_true].bits = 1;
  }

  void run() {
    if (tree_.pickle.empty() || tree_.pickle[0] != std::byte{0x80})
      refuse("not a pickle of protocol 2 or later", "save it again with torch.save and its own protocol");
    while (!stopped_) {
      auto const opcode = in_.take_opcode();
      if (!plain(opcode) && !containing(opcode) && !memo(opcode) && !later(opcode)) {
        refuse("opcode " + std::to_string(opcode) + " is not needed for tensors and plain values");
      }
    }
    if (in_.left() != 0) refuse("bytes follow the end of the pickle");
  }

 private:
  [[noreturn]] void refuse(std::string message, std::string hint = {}) const {
    refuse_pickle(options_, in_.opcode_at(), std::move(message), std::move(hint));
  }

  // Values.
  PickleId add(PickleNode node) {
    if (tree_.nodes.size() >= options_.limits.nodes)
      refuse("there are more than " + std::to_string(options_.limits.nodes) + " values");
    node.at = static_cast<std::uint32_t>(in_.opcode_at());
    tree_.nodes.push_back(std::move(node));
    return static_cast<PickleId>(tree_.nodes.size() - 1);
  }
  bool push(PickleId id) {
    stack_.push_back(id);
    return true;
  }
  bool push_new(PickleNode node) { return push(add(std::move(node))); }
  [[nodiscard]] std::size_t floor() const noexcept { return marks_.empty() ? 0 : marks_.back(); }
  PickleId pop() {
    if (stack_.size() <= floor()) refuse("a value is missing");
    auto const id = stack_.back();
    stack_.pop_back();
    return id;
  }
  [[nodiscard]] PickleId top() const {
    if (stack_.size() <= floor()) refuse("a value is missing");
    return stack_.back();
  }
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) refuse("a mark is missing");
    auto const from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleId> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  PickleNode& node(PickleId id) { return tree_.nodes[id]; }

  // Opcodes that make one value.
  bool plain(std::uint8_t opcode) {
    switch (opcode) {
      case 'N': return push(id_none);
      case 0x88: return push(id_true);
      case 0x89: return push(id_false);
      case 'K': return integer(in_.take<std::uint8_t>());
      case 'M': return integer(in_.take<std::uint16_t>());
      case 'J': return integer(in_.take<std::int32_t>());
      case 0x8a: return long_integer(in_.take<std::uint8_t>());
      case 'G': return push_new({.kind = PickleKind::real, .bits = __builtin_bswap64(in_.take<std::uint64_t>())});
      case 'X': return text(in_.take<std::uint32_t>());
      case 'U': return text(in_.take<std::uint8_t>());
      case 'c': {
        auto const module = in_.take_line(max_global_bytes);
        return global(module, in_.take_line(max_global_bytes));
      }
      default: return structure(opcode);
    }
  }
  bool structure(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80: return protocol(in_.take<std::uint8_t>());
      case '.': return stop();
      case '(': marks_.push_back(stack_.size()); return true;
      case ')': return push(id_empty_tuple);
      case ']': return push_new({.kind = PickleKind::list});
      case '}': return push_new({.kind = PickleKind::dict});
      case 0x8f: return push_new({.kind = PickleKind::set});
      default: return false;
    }
  }
  bool integer(std::int64_t value) {
    return push_new({.kind = PickleKind::integer, .bits = static_cast<std::uint64_t>(value)});
  }
  bool long_integer(std::uint64_t count) {
    auto const bytes = in_.take_bytes(count);
    std::uint64_t value = 0;
    auto const negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U) != 0;
    if (count == 9 && bytes[8] == 0) {
      std::memcpy(&value, bytes.data(), 8);
      auto const kind = (value >> 63U) != 0 ? PickleKind::natural : PickleKind::integer;
      return push_new({.kind = kind, .bits = value});
    }
    if (count > 8) refuse("an integer does not fit in 64 bits");
    if (negative) value = ~std::uint64_t{0};
    if (count > 0) std::memcpy(&value, bytes.data(), count);
    return push_new({.kind = PickleKind::integer, .bits = value});
  }
  bool text(std::uint64_t bytes) { return push_new({.kind = PickleKind::text, .text = in_.take_bytes(bytes)}); }
  bool bytes(std::uint64_t count) { return push_new({.kind = PickleKind::bytes, .text = in_.take_bytes(count)}); }

  bool global(std::string_view module, std::string_view name) {
    auto full = global_name(module, name);
    auto const [known, is_new] = globals_.try_emplace(full, absent);
    if (is_new) {
      bool const listed = allows(options_.allowlist, options_.extra_globals, full);
      if (!listed && !options_.allowlist.other_classes) refuse_global(full);
      tree_.made.push_back(std::move(full));
      known->second = add({.kind = PickleKind::global, .text = tree_.made.back()});
      if (!listed) unlisted_.insert(known->second);
    }
    return push(known->second);
  }
  [[noreturn]] void refuse_global(std::string_view full) const {
    auto const shown = printable(full.substr(0, 200));
    if (auto const known = explain_unsupported_global(full))
      refuse(std::string(known->message) + " (" + shown + ")", std::string(known->hint));
    // Only archives are read with the user's names.
    auto const hint = options_.allowlist.persistent ? ", or allow the name: `extra_globals` " + shown : "";
    refuse("the pickle mentions " + shown + ", which no tensor or plain value needs",
           "save a state dict of tensors and plain values" + hint + "; crossrank never calls anything in a pickle");
  }
  bool protocol(unsigned version) {
    if (in_.opcode_at() != 0) refuse("there is a second header");
    if (version < 2 || version > 5) refuse("protocol " + std::to_string(version) + " is not one of 2 to 5");
    return true;
  }
  bool stop() {
    tree_.root = pop();
    if (!stack_.empty() || !marks_.empty()) refuse("values remain at the end");
    return stopped_ = true;
  }

  // Opcodes that add values to containers and objects.
  bool containing(std::uint8_t opcode) {
    switch (opcode) {
      case 't': return tuple(pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87: return short_tuple(opcode - 0x84U);
      case 'a': return append(PickleKind::list, {pop()});
      case 'e': return append(PickleKind::list, pop_to_mark());
      case 's': {
        auto const value = pop();
        auto const key = pop();
        return append(PickleKind::dict, {key, value});
      }
      case 'u': return append(PickleKind::dict, pop_to_mark());
      case 'R': {
        auto const arguments = pop();
        return reduce(pop(), arguments);
      }
      case 0x81: {
        auto const arguments = pop();
        return new_object(pop(), arguments);
      }
      case 'b': return build(pop());
      case 'Q': return persistent(pop());
      default: return false;
    }
  }
  bool tuple(std::vector<PickleId> items) {
    return items.empty() ? push(id_empty_tuple) : push_new({.kind = PickleKind::tuple, .items = std::move(items)});
  }
  bool short_tuple(std::size_t count) {
    std::vector<PickleId> items(count);
    for (auto item = items.rbegin(); item != items.rend(); ++item) *item = pop();
    return tuple(std::move(items));
  }
  bool append(PickleKind wanted, std::vector<PickleId> const& items) {
    auto& target = node(top());
    if (target.kind != wanted) {
      refuse(std::string("items of a ") + to_string(wanted) + " are added to a " + to_string(target.kind));
    }
    if (wanted == PickleKind::dict && items.size() % 2 != 0) refuse("a key of a dict has no value");
    target.items.insert(target.items.end(), items.begin(), items.end());
    return true;
  }
  bool new_object(PickleId cls, PickleId arguments) {
    if (node(cls).kind != PickleKind::global || node(arguments).kind != PickleKind::tuple)
      refuse("an object is not made from a class and arguments");
    if (is_mapping(node(cls).text)) return reduce(cls, arguments);
    return push_new({.kind = PickleKind::object, .items = {cls, arguments}});
  }
  bool build(PickleId state) {
    auto& target = node(top());
    // torch's modules store "_metadata" as the state of an OrderedDict. It says nothing about the weights.
    if (target.kind == PickleKind::dict) return true;
    if (target.kind != PickleKind::object && target.kind != PickleKind::call)
      refuse(std::string("a state is set on a ") + to_string(target.kind));
    target.items.push_back(state);
    return true;
  }
  bool persistent(PickleId id) {
    if (!options_.allowlist.persistent) refuse("the pickle refers to data outside of it");
    return push_new({.kind = PickleKind::persistent, .items = {id}});
  }

  // Calls. A few that only wrap plain values become those values; all others stay calls.
  static bool is_mapping(std::string_view global) noexcept {
    return global == "collections.OrderedDict" || global == "collections.Counter" ||
           global == "collections.defaultdict" || global == "builtins.dict";
  }
  bool reduce(PickleId callee, PickleId arguments) {
    if (node(callee).kind != PickleKind::global || node(arguments).kind != PickleKind::tuple)
      refuse("a call without a function or without arguments");
    auto const name = node(callee).text;
    if (unlisted_.contains(callee)) refuse_global(name);
    if (is_mapping(name)) return mapping(name, node(arguments).items);
    if (name == "torch.Size" && node(arguments).items.size() == 1 && is_sequence(node(arguments).items[0]))
      return push(node(arguments).items[0]);
    if (name == "builtins.set" && node(arguments).items.size() == 1 && is_sequence(node(arguments).items[0])) {
      auto const& members = node(node(arguments).items[0]).items;
      count_copied(members.size());
      return push_new({.kind = PickleKind::set, .items = std::vector<PickleId>(members)});
    }
    if (name == "_codecs.encode") return encoded(node(arguments).items);
    // Protocol 2 has no other way to write an empty byte string.
    if (name == "builtins.bytes" && node(arguments).items.empty()) return push_new({.kind = PickleKind::bytes});
    if (name == "builtins.bytearray" && node(arguments).items.size() == 1 &&
        node(node(arguments).items[0]).kind == PickleKind::bytes)
      return push(node(arguments).items[0]);
    return push_new({.kind = PickleKind::call, .items = {callee, arguments}});
  }
  [[nodiscard]] bool is_sequence(PickleId id) {
    return node(id).kind == PickleKind::tuple || node(id).kind == PickleKind::list;
  }
  bool mapping(std::string_view name, std::vector<PickleId> const& arguments) {
    std::vector<PickleId> items;
    auto const is_default = name == "collections.defaultdict";
    if (arguments.size() > (is_default ? 2U : 1U)) refuse("a dict is made from too many arguments");
    if (arguments.size() == (is_default ? 2U : 1U)) {
      auto const from = arguments.back();
      if (node(from).kind == PickleKind::dict) {
        items = node(from).items;
      } else if (is_sequence(from)) {
        for (auto const pair : node(from).items) {
          if (!is_sequence(pair) || node(pair).items.size() != 2) refuse("a dict is not made from pairs");
          items.insert(items.end(), node(pair).items.begin(), node(pair).items.end());
        }
      } else {
        refuse("a dict is not made from pairs");
      }
    }
    count_copied(items.size());
    return push_new({.kind = PickleKind::dict, .items = std::move(items)});
  }
  /// Counts copied items. The source may be shared, so that without a limit a short pickle could ask for any amount.
  void count_copied(std::size_t items) {
    copied_ += items;
    if (copied_ > options_.limits.nodes)
      refuse("there are more than " + std::to_string(options_.limits.nodes) + " values");
  }
  /// Decodes a byte string, which protocol 2 writes as text with one character per byte.
  bool encoded(std::vector<PickleId> const& arguments) {
    if (arguments.empty() || node(arguments[0]).kind != PickleKind::text ||
        (arguments.size() == 2 && node(arguments[1]).text != "latin1" && node(arguments[1]).text != "latin-1"))
      refuse("an encoding is not latin1");
    auto const from = node(arguments[0]).text;
    made_bytes_ += from.size();
    if (made_bytes_ > options_.limits.made_bytes) refuse("byte strings are larger than the limit");
    auto out = to_latin1(from);
    if (!out) refuse("a byte string is not latin1 text");
    tree_.made.push_back(std::move(*out));
    return push_new({.kind = PickleKind::bytes, .text = tree_.made.back()});
  }

  // The memo.
  bool memo(std::uint8_t opcode) {
    switch (opcode) {
      case 'q': return put(in_.take<std::uint8_t>());
      case 'r': return put(in_.take<std::uint32_t>());
      case 'h': return get(in_.take<std::uint8_t>());
      case 'j': return get(in_.take<std::uint32_t>());
      default: return false;
    }
  }
  bool put(std::uint64_t number) {
    auto const value = top();
    // Pickles number their memos consecutively. A number above the number of bytes is an attack on memory.
    if (number > in_.size()) refuse("a memo has the number " + std::to_string(number));
    if (number >= memo_.size()) memo_.resize(number + 1, absent);
    memo_[number] = value;
    return true;
  }
  bool get(std::uint64_t number) {
    if (number >= memo_.size() || memo_[number] == absent) refuse("unknown memo " + std::to_string(number));
    return push(memo_[number]);
  }

  // Opcodes of protocols 3 to 5.
  bool later(std::uint8_t opcode) {
    switch (opcode) {
      case 0x95:
        if (in_.take<std::uint64_t>() > in_.left()) refuse("a frame goes past the end of the pickle");
        return true;
      case 0x94: return put(memo_.size());
      case 0x8c: return text(in_.take<std::uint8_t>());
      case 0x8d: return text(in_.take<std::uint64_t>());
      case 'C': return bytes(in_.take<std::uint8_t>());
      case 'B': return bytes(in_.take<std::uint32_t>());
      case 0x8e:
      case 0x96: return bytes(in_.take<std::uint64_t>());
      case 0x8b: return long_integer(in_.take<std::uint32_t>());
      case 0x90: return append(PickleKind::set, pop_to_mark());
      case 0x93: {
        auto const name = pop();
        auto const module = pop();
        if (node(name).kind != PickleKind::text || node(module).kind != PickleKind::text ||
            node(name).text.size() + node(module).text.size() > max_global_bytes)
          refuse("a global has no name");
        return global(node(module).text, node(name).text);
      }
      default: return false;
    }
  }

  PickleTree& tree_;
  PickleOptions const& options_;
  PickleCursor in_;
  bool stopped_ = false;
  std::size_t copied_ = 0;
  std::size_t made_bytes_ = 0;
  std::vector<PickleId> stack_{};
  std::vector<std::size_t> marks_{};
  std::vector<PickleId> memo_{};
  std::unordered_map<std::string, PickleId> globals_{};
  std::unordered_set<PickleId> unlisted_{};  ///< globals that are allowed only as classes and values
};

}  // namespace

void refuse_pickle(PickleOptions const& options, std::uint64_t at, std::string message, std::string hint) {
  throw FormatError({.operation = "pickle read",
                     .message = std::move(message),
                     .resource = options.source,
                     .hint = std::move(hint),
                     .section = options.section,
                     .offset = options.base + at});
}

std::shared_ptr<PickleTree const> read_pickle(std::vector<std::byte> pickle, PickleOptions const& options) {
  // Positions are kept in 32 bits.
  auto const max = std::min<std::uint64_t>(options.limits.pickle_bytes, ~std::uint32_t{0});
  if (pickle.size() > max) {
    refuse_pickle(options, max,
                  "the pickle has " + std::to_string(pickle.size()) + " bytes; the limit is " + std::to_string(max));
  }
  auto tree = std::make_shared<PickleTree>();
  tree->pickle = std::move(pickle);
  Interpreter(*tree, options).run();
  validate_pickle(*tree, options);
  return tree;
}

}  // namespace crossrank::codec
