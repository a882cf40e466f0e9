#include "workspace/checkpoint/plan/plan_text.hpp"

#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include <crossrank/error.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/core/text/list_text.hpp"
#include "lib/core/overloads.hpp"
#include "lib/core/text/terminal_text.hpp"
#include "workspace/checkpoint/quantization/requantize.hpp"

namespace crossrank::checkpoint {
namespace {

std::string base_name(std::string const& path) { return std::filesystem::path(path).filename().string(); }

char const* op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::min: return "min";
    case ReduceOp::avg: return "avg";
    default: return "max";
  }
}

char const* kind_name(MergeKind const& kind) {
  return std::visit(Overloads{[](KeepReplica const&) { return "replicate"; },
                              [](Concatenate const& concat) { return concat.requantization ? "requantize" : "concat"; },
                              [](Reduce const&) { return "reduce"; }, [](SumElement const&) { return "reduce"; },
                              [](UsePrecomputed const&) { return "given"; }, [](LeaveOut const&) { return "drop"; },
                              [](SeparateParts const&) { return "separate"; },
                              [](MergeExpertGroups const&) { return "expert_groups"; }},
                    kind);
}

void add_concatenation(Json& out, Concatenate const& concat) {
  out["axis"] = concat.axis;
  if (!concat.parts.empty()) out["parts"] = concat.parts;
  if (concat.replicas > 1) out["replicas"] = concat.replicas;
  if (!concat.part_replicas.empty()) out["part_replicas"] = concat.part_replicas;
  if (concat.rank_block > 0) out["rank_block"] = concat.rank_block;
  if (concat.only_part >= 0) out["only_part"] = concat.only_part;
  if (concat.part_period > 0) out["part_period"] = concat.part_period;
  if (concat.assumed_layout) out["layout"] = "per_rank, assumed";
  if (concat.true_size >= 0) out["true_size"] = concat.true_size;
  if (concat.add_per_rank != 0) out["add_per_rank"] = concat.add_per_rank;
}

Json rule_json(MergedTensor const& tensor) {
  auto const& rule = *tensor.rule;
  Json out{{"kind", kind_name(rule.kind)}};
  if (auto const* const concat = std::get_if<Concatenate>(&rule.kind)) add_concatenation(out, *concat);
  if (auto const* const reduce = std::get_if<Reduce>(&rule.kind)) out["op"] = op_name(reduce->op);
  if (rule.is<SumElement>()) out["op"] = "sum";
  if (rule.ep_axis >= 0) out["ep_axis"] = rule.ep_axis;
  if (auto const* const values = std::get_if<UsePrecomputed>(&rule.kind))
    out["values"] = codec::to_hex(codec::checksum(values->bytes));
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
  if (tensor.rule->combines_values()) {
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
