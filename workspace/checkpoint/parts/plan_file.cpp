#include "workspace/checkpoint/parts/plan_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <crossrank/error.hpp>
#include <crossrank/version.hpp>

#include "lib/codec/checksum/checksum.hpp"
#include "lib/codec/json/json_document.hpp"
#include "lib/platform/files/io_error.hpp"
#include "workspace/checkpoint/parts/json_checksum.hpp"
#include "workspace/checkpoint/source/directory_listing.hpp"

namespace crossrank::checkpoint {
namespace {

constexpr char const* format_name = "crossrank parts plan";
constexpr int format_version = 3;
constexpr char const* make_again = "make the plan again";

Json stamp_json(FileStamp const& stamp) {
  return {{"path", stamp.path}, {"size", stamp.size}, {"changed", stamp.changed}};
}

Json file_json(PlannedFile const& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"part", file.part},
          {"recipe_begin", file.recipe.begin},
          {"recipe_bytes", file.recipe.bytes},
          {"recipe_checksum", codec::to_hex(file.recipe.checksum)}};
}

/// Reads the fields of a plan file. Every field must exist, and no other.
class FieldReader {
 public:
  FieldReader(std::string const& file, Json const& object, std::string where, std::initializer_list<char const*> fields)
      : file_(file), object_(object), where_(std::move(where)) {
    if (!object.is_object()) refuse("", "an object", object.type_name());
    for (auto const* const name : fields) static_cast<void>(at(name));
    for (auto const& [name, value] : object.items()) {
      if (std::find(fields.begin(), fields.end(), name) == fields.end()) refuse(name, "no such field", "one");
    }
  }

  [[nodiscard]] Json const& at(char const* name) const {
    auto const found = object_.find(name);
    if (found == object_.end()) refuse(name, "a value", "none");
    return *found;
  }
  [[nodiscard]] std::string text(char const* name) const {
    if (!at(name).is_string()) refuse(name, "a text", at(name).type_name());
    return at(name).get<std::string>();
  }
  [[nodiscard]] bool boolean(char const* name) const {
    if (!at(name).is_boolean()) refuse(name, "true or false", at(name).type_name());
    return at(name).get<bool>();
  }
  [[nodiscard]] std::uint64_t number(char const* name, std::uint64_t max) const {
    if (!at(name).is_number_unsigned() || at(name).get<std::uint64_t>() > max)
      refuse(name, "a number from 0 to " + std::to_string(max), short_text(at(name)));
    return at(name).get<std::uint64_t>();
  }
  [[nodiscard]] std::int64_t time(char const* name) const {
    bool const fits = at(name).is_number_integer() &&
                      (!at(name).is_number_unsigned() ||
                       at(name).get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits) refuse(name, "a time in nanoseconds", short_text(at(name)));
    return at(name).get<std::int64_t>();
  }
  [[nodiscard]] std::uint64_t digest(char const* name) const {
    auto const digest = codec::from_hex(text(name));
    if (!digest) refuse(name, "16 hexadecimal digits", short_text(at(name)));
    return *digest;
  }
  /// Reads an absolute path.
  [[nodiscard]] std::string path(char const* name) const {
    auto value = text(name);
    if (!value.starts_with('/') || value.find('\0') != std::string::npos)
      refuse(name, "an absolute path", short_text(at(name)));
    return value;
  }
  /// Reads the name of an output file: not hidden, and not a path.
  [[nodiscard]] std::string file_name(char const* name) const {
    constexpr std::size_t longest = 255;
    auto value = text(name);
    bool const plain = !value.empty() && value.size() <= longest && value.front() != '.' &&
                       value.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
    if (!plain) refuse(name, "a file name", short_text(at(name)));
    return value;
  }
  [[nodiscard]] Json const& list(char const* name, std::size_t max) const {
    if (!at(name).is_array()) refuse(name, "a list", at(name).type_name());
    if (at(name).size() > max)
      refuse(name, "at most " + std::to_string(max) + " entries", std::to_string(at(name).size()));
    return at(name);
  }
  [[noreturn]] void refuse(std::string const& name, std::string expected, std::string got) const {
    auto field = where_ + (where_.empty() || name.empty() ? "" : ".") + name;
    if (field.empty()) field = "\"\"";  // the name of a field, which may be any text
    throw FormatError({.operation = parts_operation,
                       .message = "a value of this plan is wrong: " + field,
                       .expected = std::move(expected),
                       .got = std::move(got),
                       .resource = file_,
                       .hint = make_again,
                       .section = field});
  }

 private:
  static std::string short_text(Json const& value) {
    constexpr std::size_t longest = 80;
    return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, longest);
  }

  std::string const& file_;
  Json const& object_;
  std::string where_;
};

[[noreturn]] void refuse(std::string const& file, char const* section, char const* message, std::string expected,
                         std::string got, char const* hint) {
  throw FormatError({.operation = parts_operation,
                     .message = message,
                     .expected = std::move(expected),
                     .got = std::move(got),
                     .resource = file,
                     .hint = hint,
                     .section = section});
}

/// Checks format, version and checksum, in this order, so that a plan of another version is called that.
void require_this_format(std::string const& file, Json const& plan) {
  auto const format = plan.find("format");
  if (format == plan.end() || *format != format_name)
    refuse(file, "format", "this is not a plan of parts", format_name,
           format != plan.end() && format->is_string() ? format->get<std::string>() : "another file",
           "give the file that `crossrank plan` wrote");
  auto const version = plan.find("version");
  if (version == plan.end() || *version != format_version)
    refuse(file, "version", "the plan was made by another version of crossrank", std::to_string(format_version),
           version == plan.end() ? "none" : version->dump(), "use the same version for the plan and for all its parts");
  auto const checksum = plan.find("checksum");
  auto const found = json_checksum(plan);
  if (checksum == plan.end() || *checksum != found)
    refuse(file, "checksum", "the plan is damaged or was edited", found,
           checksum != plan.end() && checksum->is_string() ? checksum->get<std::string>() : "none", make_again);
}

PlanInputs inputs_of(std::string const& file, FieldReader const& plan) {
  FieldReader const fields(file, plan.at("inputs"), "inputs",
                           {"path", "rules", "tp", "pp", "ep", "pattern", "policy", "crc", "extra_globals", "model_key",
                            "moe_ep", "fused_layout"});
  static_cast<void>(fields.path("path"));
  if (!fields.text("rules").empty()) static_cast<void>(fields.path("rules"));
  for (auto const* const size : {"tp", "pp", "ep", "moe_ep", "policy", "crc", "fused_layout"})
    static_cast<void>(fields.number(size, std::numeric_limits<int>::max()));
  try {
    return plan_inputs_from_json(plan.at("inputs"));
  } catch (Json::exception const& error) {
    fields.refuse("", "the options of a merge", error.what());
  }
}

std::vector<FileStamp> stamps_of(std::string const& file, FieldReader const& plan) {
  constexpr std::size_t max_files = 1'000'000;
  std::vector<FileStamp> stamps;
  for (auto const& entry : plan.list("stamps", max_files)) {
    FieldReader const fields(file, entry, "stamps", {"path", "size", "changed"});
    stamps.push_back({.path = fields.path("path"),
                      .size = fields.number("size", std::numeric_limits<std::int64_t>::max()),
                      .changed = fields.time("changed")});
  }
  return stamps;
}

std::vector<PlannedFile> files_of(std::string const& file, FieldReader const& plan, int parts) {
  constexpr std::size_t max_files = 1'000'000;
  std::vector<PlannedFile> files;
  std::set<std::string> names;
  for (auto const& entry : plan.list("files", max_files)) {
    FieldReader const fields(file, entry, "files",
                             {"name", "bytes", "part", "recipe_begin", "recipe_bytes", "recipe_checksum"});
    files.push_back({.name = fields.file_name("name"),
                     .bytes = fields.number("bytes", std::numeric_limits<std::int64_t>::max()),
                     .part = static_cast<int>(fields.number("part", static_cast<std::uint64_t>(parts) - 1)),
                     .recipe = {.begin = fields.number("recipe_begin", std::numeric_limits<std::int64_t>::max()),
                                .bytes = fields.number("recipe_bytes", codec::listing_limits.bytes),
                                .checksum = fields.digest("recipe_checksum")}});
    if (!names.insert(files.back().name).second) fields.refuse("name", "a name that occurs once", files.back().name);
  }
  return files;
}

}  // namespace

PlanFile parse_plan(Json const& json, std::string const& file) {
  require_this_format(file, json);
  FieldReader const plan(file, json, "",
                         {"format", "version", "made_by", "checksum", "inputs", "merge_hash", "stamps", "out", "parts",
                          "max_shard_bytes", "single_file", "output_format", "force", "files"});
  auto const parts = static_cast<int>(plan.number("parts", max_parts));
  if (parts < 1) plan.refuse("parts", "a number from 1", "0");
  return {.inputs = inputs_of(file, plan),
          .merge_hash = plan.digest("merge_hash"),
          .stamps = stamps_of(file, plan),
          .out = plan.path("out"),
          .options = {.parts = parts,
                      .max_shard_bytes = plan.number("max_shard_bytes", std::numeric_limits<std::uint64_t>::max()),
                      .single_file = plan.boolean("single_file"),
                      .format = static_cast<OutputFormat>(
                          plan.number("output_format", static_cast<std::uint64_t>(OutputFormat::images))),
                      .force = plan.boolean("force")},
          .files = files_of(file, plan, parts),
          .made_by = plan.text("made_by")};
}

std::string to_text(PlanFile const& plan) {
  Json stamps = Json::array();
  for (auto const& stamp : plan.stamps) stamps.push_back(stamp_json(stamp));
  Json files = Json::array();
  for (auto const& file : plan.files) files.push_back(file_json(file));
  Json json{{"format", format_name},
            {"version", format_version},
            {"made_by", CROSSRANK_VERSION},
            {"inputs", to_json(plan.inputs)},
            {"merge_hash", codec::to_hex(plan.merge_hash)},
            {"out", plan.out.string()},
            {"parts", plan.options.parts},
            {"max_shard_bytes", plan.options.max_shard_bytes},
            {"single_file", plan.options.single_file},
            {"output_format", static_cast<int>(plan.options.format)},
            {"force", plan.options.force},
            {"stamps", std::move(stamps)},
            {"files", std::move(files)}};
  try {
    json["checksum"] = json_checksum(json);
    return json.dump(1) + "\n";
  } catch (Json::exception const&) {
    throw UsageError({.operation = parts_operation,
                      .message = "a path of the inputs or of the output is not valid UTF-8, so a plan cannot name it",
                      .hint = "rename the directory"});
  }
}

PlanFile read_plan_file(std::filesystem::path const& path) {
  auto const json = read_json_object(path, codec::listing_limits);
  if (!json) platform::throw_io(std::string(parts_operation) + ": open", path.string(), ENOENT);
  return parse_plan(*json, path.string());
}

}  // namespace crossrank::checkpoint
