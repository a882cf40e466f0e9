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
  std::string name{};       ///< its name in the file
  Dtype dtype = Dtype::u8;  ///< its element type
  Shape shape{};            ///< its dimensions
};

/// A safetensors file of any origin, opened for reading. Its header is read and checked whole, its data on request.
///
/// Local. Copies share the open file. Symbolic links are followed, as model caches consist of them.
class CROSSRANK_EXPORT SafetensorsFile {
 public:
  /// Opens a file; costs in proportion to its header. `IoError` when the system refuses, `FormatError` for bytes that
  /// are not such a file.
  explicit SafetensorsFile(std::filesystem::path path);

  /// Returns the file's path.
  [[nodiscard]] std::filesystem::path const& path() const noexcept;
  /// Returns the tensors, in the order of their data.
  [[nodiscard]] std::span<SafetensorsEntry const> entries() const noexcept;
  /// Returns the tensor called `name`, or null.
  [[nodiscard]] SafetensorsEntry const* find(std::string_view name) const noexcept;
  /// Returns the free text of the file's writer, in the order of the file.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> const& metadata() const noexcept;

  /// Reads one tensor into memory of its own. One copy; verified when the file carries our checksums. `UsageError` for
  /// an unknown name.
  [[nodiscard]] Tensor read(std::string_view name) const;
  /// Reads `length` entries of dimension `dim`, from `begin` on.
  ///
  /// Takes memory for the slice alone. Along dimension 0 nothing else is read; along others whole rows are, a block at
  /// a time. Not verified. `UsageError` for an unknown name, dimension or range, or when the slice splits a byte.
  [[nodiscard]] Tensor read_slice(std::string_view name, Dim dim, std::int64_t begin, std::int64_t length) const;

 private:
  struct State;
  std::shared_ptr<State const> state_;
};

/// Options of `save_safetensors`.
struct SafetensorsOptions {
  /// Free text that is written into the file. Most loaders want the format of the framework.
  std::vector<std::pair<std::string, std::string>> metadata{{"format", "pt"}};
};

/// Reads all tensors of a file, in the order of its data. Local; costs and errors as for `SafetensorsFile::read`.
[[nodiscard]] CROSSRANK_EXPORT StateDict load_safetensors(std::filesystem::path const& path);

/// Writes a file that appears under its name whole and durable or not at all. The name must be new.
///
/// Local; copies each byte once, into the file. The bytes are those that the format's reference implementation writes.
/// `UsageError` for an undefined tensor, one that is not on the CPU, and names that the format does not allow.
/// `IoError` for a name that is taken, or with the bytes written and the free space; then nothing is left.
CROSSRANK_EXPORT void save_safetensors(std::filesystem::path const& path, StateDict const& weights,
                                       SafetensorsOptions const& options = {});

}  // namespace crossrank
