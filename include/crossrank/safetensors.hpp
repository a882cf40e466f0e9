#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <crossrank/dtype.hpp>
#include <crossrank/export.hpp>
#include <crossrank/shape.hpp>
#include <crossrank/state.hpp>
#include <crossrank/tensor.hpp>

namespace crossrank {

/// One tensor as the header of a safetensors file describes it.
struct SafetensorsEntry {
  std::string name{};
  Dtype dtype = Dtype::u8;
  Shape shape{};
};

/// A safetensors file opened for reading, of whatever origin: its header is read and checked whole, its data only on
/// request.
///
/// Local. Copies share the open file. Symbolic links are followed, as model caches are made of them.
class CROSSRANK_EXPORT SafetensorsFile {
 public:
  /// Costs in proportion to the header. `IoError` where the system refuses, `FormatError` for bytes that are not such a
  /// file.
  explicit SafetensorsFile(std::filesystem::path path);

  [[nodiscard]] std::filesystem::path const& path() const noexcept;
  /// In the order of the data.
  [[nodiscard]] std::span<SafetensorsEntry const> entries() const noexcept;
  /// Null when there is no such tensor.
  [[nodiscard]] SafetensorsEntry const* find(std::string_view name) const noexcept;
  /// Free text of the file's writer, in the order of the file.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> const& metadata() const noexcept;

  /// One tensor, in memory of its own. One copy; verified where the file carries checksums of ours. `UsageError` for an
  /// unknown name.
  [[nodiscard]] Tensor read(std::string_view name) const;
  /// `length` entries of dimension `dim` from `begin` on. Memory for the slice alone; along dimension 0 nothing else is
  /// read, along others whole rows are, a block at a time. Not verified. `UsageError` for an unknown name, when there
  /// is no such dimension or range, or when a cut falls inside a byte.
  [[nodiscard]] Tensor read_slice(std::string_view name, Dim dim, std::int64_t begin, std::int64_t length) const;

 private:
  struct State;
  std::shared_ptr<State const> state_;
};

struct SafetensorsOptions {
  /// Written into the file as free text; loaders of the field want the format of the framework.
  std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
};

/// All tensors of a file, in the order of its data. As `SafetensorsFile::read` for each.
[[nodiscard]] CROSSRANK_EXPORT StateDict load_safetensors(std::filesystem::path const& path);

/// Writes a file that appears under its name whole and durable or not at all; the name must be new.
///
/// Local; copies each byte once, into the file. Byte for byte what the format's reference writes. `UsageError` for an
/// absent tensor, one that is not on the CPU, and names that the format does not allow; `IoError` with the bytes
/// written and the room left, or for a name that is taken; then nothing is left.
CROSSRANK_EXPORT void save_safetensors(std::filesystem::path const& path, StateDict const& weights,
                                       SafetensorsOptions const& options = {});

}  // namespace crossrank
