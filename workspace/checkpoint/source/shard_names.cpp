#include "workspace/checkpoint/source/shard_names.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <crossrank/error.hpp>

#include "lib/core/as_size.hpp"

namespace crossrank::checkpoint {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Removes and returns the number at the start of `text`. Returns nothing if there is none or it is too large.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  auto const [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || text.empty() || !is_digit(text.front())) return std::nullopt;
  text.remove_prefix(as_size(stop - text.data()));
  return value;
}

/// A run of letters and the numbers that follow it.
struct Word {
  std::string text{};
  std::vector<int> numbers{};
};

std::vector<Word> words_of(std::string_view name) {
  std::vector<Word> words;
  while (!name.empty()) {
    if (is_letter(name.front())) {
      Word word;
      for (; !name.empty() && is_letter(name.front()); name.remove_prefix(1)) word.text += lower(name.front());
      words.push_back(std::move(word));
    } else if (is_digit(name.front())) {
      auto const number = take_number(name);
      if (!number) return words;
      if (words.empty()) words.emplace_back();
      words.back().numbers.push_back(*number);
    } else {
      name.remove_prefix(1);
    }
  }
  return words;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> spellings) {
  return std::find(spellings.begin(), spellings.end(), word) != spellings.end();
}

/// Returns the grid axis that a word names, or empty.
std::string_view axis_of(std::string_view word) {
  if (is_one_of(word, {"tp", "tensor", "tensorparallel"})) return "tp";
  if (is_one_of(word, {"pp", "pipeline", "stage", "pipelineparallel"})) return "pp";
  if (is_one_of(word, {"ep", "expert", "expertparallel"})) return "ep";
  return {};
}

void assign(ShardNumbers& out, std::string_view axis, int value) {
  if (axis == "tp" && !out.tp) out.tp = value;
  if (axis == "pp" && !out.pp) out.pp = value;
  if (axis == "ep" && !out.ep) out.ep = value;
  if (axis == "rank" && !out.rank) out.rank = value;
}

void assign_size(ShardNumbers& out, std::string_view axis, int value) {
  if (axis == "tp") out.tp_size = value;
  if (axis == "pp") out.pp_size = value;
  if (axis == "ep") out.ep_size = value;
  if (axis == "rank") out.ranks = value;
}

/// Returns the axis that the word's number belongs to: "rank" for the whole grid, empty for none. "consolidated.00.pth"
/// counts tensor-parallel ranks.
std::string_view numbered_axis(std::vector<Word> const& words, std::size_t i) {
  auto const& word = words[i];
  if (word.text == "consolidated" && i == 0) return "tp";
  if (word.text != "rank") return axis_of(word.text);
  if (i == 0 || !words[i - 1].numbers.empty()) return "rank";
  auto const axis = axis_of(words[i - 1].text);
  return axis.empty() ? "rank" : axis;
}

/// Returns begin and end of each run of digits.
std::vector<std::pair<std::size_t, std::size_t>> digits_of(std::string_view name) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (!is_digit(name[i])) continue;
    auto const begin = i;
    while (i < name.size() && is_digit(name[i])) ++i;
    runs.emplace_back(begin, i);
  }
  return runs;
}

}  // namespace

ShardNumbers parse_shard_name(std::string_view name) {
  ShardNumbers out;
  auto const words = words_of(name);
  std::string_view counted;  // axis of the previous word; "of" may give its size
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto const& word = words[i];
    auto const* const before = i > 0 ? &words[i - 1] : nullptr;
    auto const behind = std::exchange(counted, {});
    if (word.numbers.empty()) continue;
    if (word.text == "rank" && before != nullptr && before->numbers.empty() && before->text == "mp") {
      counted = "tp";
      assign(out, "tp", word.numbers[0]);
      if (word.numbers.size() > 1) assign(out, "pp", word.numbers[1]);
      if (word.numbers.size() > 2) assign(out, "ep", word.numbers[2]);
    } else if (auto const axis = numbered_axis(words, i); !axis.empty()) {
      counted = axis;
      assign(out, axis, word.numbers[0]);
    } else if (word.text == "size" && before != nullptr && before->text == "world") {
      out.ranks = word.numbers[0];
    } else if (word.text == "part" && !out.part) {
      out.part = word.numbers[0];  // "model-rank-0-part-1" has no number of parts
    } else if (word.text == "of" && !behind.empty()) {
      assign_size(out, behind, word.numbers[0]);
    } else if (word.text == "of" && before != nullptr && !before->numbers.empty()) {
      out.part = before->numbers.back();
      out.parts = word.numbers[0];
    }
  }
  return out;
}

bool is_only_a_place(std::string_view name) {
  auto const words = words_of(name);
  return parse_shard_name(name).has_place() && std::all_of(words.begin(), words.end(), [](Word const& word) {
           return !axis_of(word.text).empty() || is_one_of(word.text, {"mp", "rank", "of", "world", "size"});
         });
}

std::string sibling_name(std::string_view name, ShardNumbers const& wanted) {
  std::string current(name);
  // Replace one number at a time, if the replacement changes only the wanted field.
  for (auto const field :
       {&ShardNumbers::rank, &ShardNumbers::tp, &ShardNumbers::pp, &ShardNumbers::ep, &ShardNumbers::part}) {
    auto next = parse_shard_name(current);
    if (next.*field == wanted.*field || !(wanted.*field)) continue;
    next.*field = wanted.*field;
    std::string found;
    for (auto const& [begin, end] : digits_of(current)) {
      auto digits = std::to_string(*(wanted.*field));
      if (digits.size() < end - begin) digits.insert(0, end - begin - digits.size(), '0');
      auto candidate = current.substr(0, begin) + digits + current.substr(end);
      if (parse_shard_name(candidate) == next) found = std::move(candidate);
    }
    if (found.empty()) return {};
    current = std::move(found);
  }
  return parse_shard_name(current) == wanted ? current : std::string();
}

std::string common_pattern(std::vector<std::string> const& names) {
  if (names.size() < 2) return {};
  auto const first = digits_of(names.front());
  for (auto const& [begin, end] : first) {
    auto const before = names.front().substr(0, begin);
    auto const behind = names.front().substr(end);
    auto const fits = [&](std::string const& name) {
      if (name.size() <= before.size() + behind.size() || !name.starts_with(before) || !name.ends_with(behind))
        return false;
      auto const number = std::string_view(name).substr(before.size(), name.size() - before.size() - behind.size());
      return std::all_of(number.begin(), number.end(), is_digit);
    };
    if (std::all_of(names.begin(), names.end(), fits)) return before + "{rank}" + behind;
  }
  return {};
}

std::optional<ShardNumbers> match_shard_pattern(std::string_view pattern, std::string_view name) {
  ShardNumbers out;
  while (!pattern.empty()) {
    if (pattern.front() == '*') {
      for (std::size_t skip = 0; skip <= name.size(); ++skip) {
        auto const rest = match_shard_pattern(pattern.substr(1), name.substr(skip));
        if (!rest) continue;
        if (rest->rank) out.rank = rest->rank;
        if (rest->tp) out.tp = rest->tp;
        if (rest->pp) out.pp = rest->pp;
        if (rest->ep) out.ep = rest->ep;
        return out;
      }
      return std::nullopt;
    }
    if (pattern.front() != '{') {
      if (name.empty() || name.front() != pattern.front()) return std::nullopt;
      pattern.remove_prefix(1);
      name.remove_prefix(1);
      continue;
    }
    auto const end = pattern.find('}');
    auto const axis = pattern.substr(1, end == std::string_view::npos ? end : end - 1);
    if (end == std::string_view::npos || !is_one_of(axis, {"rank", "tp", "pp", "ep"})) {
      throw UsageError({.operation = "checkpoint pattern",
                        .message = "the pattern has an unknown placeholder",
                        .expected = "{rank}, {tp}, {pp} or {ep}",
                        .got = std::string(pattern),
                        .hint = "write * for any other part of the name"});
    }
    auto const number = take_number(name);
    if (!number) return std::nullopt;
    assign(out, axis, *number);
    pattern.remove_prefix(end + 1);
  }
  return name.empty() ? std::optional(out) : std::nullopt;
}

bool natural_less(std::string_view a, std::string_view b) noexcept {
  auto const whole_a = a;
  auto const whole_b = b;
  // Names of one model mostly begin alike. A number must be compared from its first digit on.
  auto same = as_size(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (same > 0 && is_digit(a[same - 1])) --same;
  a.remove_prefix(same);
  b.remove_prefix(same);
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      auto const digits = [](std::string_view& text) {
        while (text.size() > 1 && text.front() == '0' && is_digit(text[1])) text.remove_prefix(1);
        std::size_t count = 0;
        while (count < text.size() && is_digit(text[count])) ++count;
        auto const found = text.substr(0, count);
        text.remove_prefix(count);
        return found;
      };
      auto const left = digits(a);
      auto const right = digits(b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

}  // namespace crossrank::checkpoint
