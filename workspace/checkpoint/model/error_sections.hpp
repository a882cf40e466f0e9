#pragma once

/// Sections of errors about sets of files. `verify` derives the kind of a defect from them. Any other section names a
/// place in a damaged file.
namespace crossrank::checkpoint {

/// Shards that are pieces of a larger number of ranks. The failed ranks are the missing ranks.
inline constexpr char const* missing_ranks_section = "ranks";
/// Lengths of shards that do not add up. Missing ranks are one cause.
inline constexpr char const* lengths_section = "lengths";
/// A model that is ambiguous.
inline constexpr char const* keys_section = "keys";
/// An index that does not fit its files.
inline constexpr char const* index_section = "index";
/// Tensors that are missing, or that occur twice.
inline constexpr char const* coverage_section = "coverage";
/// Files that are missing, or that do not belong together.
inline constexpr char const* files_section = "files";
/// Scales that do not fit their weights.
inline constexpr char const* scales_section = "scales";
/// Shapes that contradict a rule or each other.
inline constexpr char const* shape_section = "shape";
/// Shards that contradict each other.
inline constexpr char const* shards_section = "shards";
/// Rules that are malformed or do not fit.
inline constexpr char const* rules_section = "rules";
/// A model config that contradicts the shards.
inline constexpr char const* config_section = "config";
/// Chunks that do not cover a tensor.
inline constexpr char const* chunks_section = "chunks";
/// Malformed patterns of names.
inline constexpr char const* pattern_section = "pattern";
/// Names that no rule can translate.
inline constexpr char const* name_section = "name";
/// Dtypes that do not fit.
inline constexpr char const* dtype_section = "dtype";
/// Group numbers of quantized weights (`g_idx`).
inline constexpr char const* group_ids_section = "group ids";

}  // namespace crossrank::checkpoint
