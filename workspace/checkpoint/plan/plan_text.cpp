#include "workspace/checkpoint/plan/plan_text.hpp"

#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/list_text.hpp"
#include "lib/core/terminal_text.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"

namespace crossrank::checkpoint {
namespace {

std::string base_name(std::string const& path) { return std::filesystem::path(path).filename().string(); }

char const* kind_name(MergeKind kind) {
  switch (kind) {
    case MergeKind::replicate: return "replicate";
    case MergeKind::concat: return "concat";
    case MergeKind::reduce: return "reduce";
    case MergeKind::requantize: return "requantize";
    case MergeKind::given: return "given";
  }
  return "unknown";
}

char const* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return "min";
    case ReduceOp::avg: return "avg";
    case ReduceOp::sum: return "sum";
    default: return "max";
  }
}

Json rule_json(MergedTensor const& tensor) {
  auto const& rule = *tensor.rule;
  Json out{{"kind", kind_name(rule.kind)}};
  if (rule.kind == MergeKind::concat) {
    out["axis"] = rule.axis;
    if (!rule.parts.empty()) out["parts"] = rule.parts;
    if (rule.replicas > 1) out["replicas"] = rule.replicas;
    if (!rule.part_replicas.empty()) out["part_replicas"] = rule.part_replicas;
    if (rule.rank_block > 0) out["rank_block"] = rule.rank_block;
    if (rule.only_part >= 0) out["only_part"] = rule.only_part;
    if (rule.part_period > 0) out["part_period"] = rule.part_period;
    if (rule.assumed_layout) out["layout"] = "per_rank, assumed";
    if (rule.true_size >= 0) out["true_size"] = rule.true_size;
    if (rule.add_per_rank != 0) out["add_per_rank"] = rule.add_per_rank;
  }
  if (rule.kind == MergeKind::reduce) out["op"] = op_name(rule.op);
  if (rule.ep_axis >= 0) out["ep_axis"] = rule.ep_axis;
  if (rule.given) out["values"] = codec::to_hex(codec::checksum(rule.given->bytes));
  if (!tensor.changes.empty()) {
    out["changes"] = Json::array();
    for (auto const& change : tensor.changes) out["changes"].push_back(change->to_json());
  }
  if (!rule.reason.empty()) out["reason"] = rule.reason;
  return out;
}

Json tensor_json(MergedTensor const& tensor) {
  Json shape = Json::array();
  for (auto const length : tensor.shape) shape.push_back(length);
  Json from = Json::array();
  for (auto const& input : tensor.inputs) from.push_back({input.source, input.tensor});
  return {{"name", tensor.name},
          {"dtype", name_of(tensor.dtype)},
          {"shape", std::move(shape)},
          {"rule", rule_json(tensor)},
          {"from", std::move(from)}};
}

std::string input_runs_text(MergeLayout const& layout, InputRuns const& piece) {
  char text[200];
  auto const& source = *layout.set.sources[piece.input.source];
  std::snprintf(text, sizeof text, "  %llu x %llu bytes from byte %llu (every %llu) to byte %llu (every %llu) of ",
                static_cast<unsigned long long>(piece.copy.from.count),
                static_cast<unsigned long long>(piece.copy.from.run_bytes),
                static_cast<unsigned long long>(piece.copy.from.first_byte),
                static_cast<unsigned long long>(piece.copy.from.stride_bytes),
                static_cast<unsigned long long>(piece.copy.to_first),
                static_cast<unsigned long long>(piece.copy.to_stride));
  auto const files = list_text(source.files_of(piece.input.tensor), 4);
  return text + terminal_text(files + " : " + source.tensors()[piece.input.tensor].name) + "\n";
}

}  // namespace

namespace {

/// Returns everything but the tensors.
Json describe_set(MergeLayout const& layout, Json const& rules) {
  Json sources = Json::array();
  for (std::size_t i = 0; i < layout.set.sources.size(); ++i) {
    auto const& place = layout.set.places[i];
    sources.push_back({{"name", base_name(layout.set.sources[i]->name())},
                       {"bytes", layout.set.sources[i]->bytes_on_disk()},
                       {"tp", place.tp},
                       {"pp", place.pp},
                       {"ep", place.ep}});
  }
  Json dropped = Json::array();
  for (auto const& tensor : layout.dropped) dropped.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
  return {{"grid", {{"tp", layout.set.tp}, {"pp", layout.set.pp}, {"ep", layout.set.ep}}},
          {"bytes", layout.bytes},
          {"sources", std::move(sources)},
          {"rules", rules},
          {"dropped", std::move(dropped)}};
}

}  // namespace

Json describe_layout(MergeLayout const& layout, Json const& rules) {
  auto out = describe_set(layout, rules);
  Json tensors = Json::array();
  for (auto const& tensor : layout.tensors) tensors.push_back(tensor_json(tensor));
  out["tensors"] = std::move(tensors);
  return out;
}

std::uint64_t hash_of(MergeLayout const& layout, Json const& rules) {
  codec::StreamingChecksum running;
  auto const add = [&](Json const& part) {
    auto const text = part.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    running.update(std::as_bytes(std::span(text)));
  };
  add(describe_set(layout, rules));
  // One tensor at a time, because all of them together are large. The text is that of `tensor_json`.
  MergeRule const* known = nullptr;
  std::string rule;
  std::string text;
  for (auto const& tensor : layout.tensors) {
    if (tensor.rule.get() != known || !tensor.changes.empty()) {
      known = tensor.changes.empty() ? tensor.rule.get() : nullptr;
      rule = rule_json(tensor).dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    text = R"({"name":)" + Json(tensor.name).dump(-1, ' ', false, Json::error_handler_t::replace) + R"(,"dtype":")";
    text += name_of(tensor.dtype);
    text += R"(","shape":[)";
    for (auto const length : tensor.shape) text += std::to_string(length) + ",";
    if (text.back() == ',') text.pop_back();
    text += R"(],"rule":)" + rule + R"(,"from":[)";
    for (auto const& input : tensor.inputs)
      text += "[" + std::to_string(input.source) + "," + std::to_string(input.tensor) + "],";
    if (text.back() == ',') text.pop_back();
    text += "]}\n";
    running.update(std::as_bytes(std::span(text)));
  }
  return running.digest();
}

std::string explain_tensor(MergeLayout const& layout, std::string_view name) {
  for (auto const& dropped : layout.dropped) {
    if (dropped.name == name) return terminal_text(dropped.name + ": left out: " + dropped.reason) + "\n";
  }
  auto const& tensor = find_tensor(layout, name);
  auto text = terminal_text(tensor.name) + ": " + std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape) +
              ", " + std::to_string(tensor.bytes) + " bytes\n" +
              "rule: " + terminal_text(rule_json(tensor).dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
  for (auto const& piece : tensor.pieces) text += input_runs_text(layout, piece);
  for (auto const& change : tensor.changes) text += "  requantized: " + change->bound() + "\n";
  if (tensor.rule->kind == MergeKind::reduce) {
    for (auto const& input : tensor.inputs)
      text += "  one value of " + terminal_text(layout.set.sources[input.source]->name()) + "\n";
  }
  for (auto const& replica : tensor.replica_runs) {
    if (!replica.must_differ)
      text += "  compared with " + terminal_text(layout.set.sources[replica.other.source]->name()) + "\n";
  }
  return text;
}

}  // namespace crossrank::checkpoint
