#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/as_size.hpp"
#include "workspace/checkpoint/source/shard_set.hpp"

namespace crossrank::checkpoint {

/// A source in memory. Tensors without bytes read as zeros.
class SampleSource final : public ShardSource {
 public:
  explicit SampleSource(std::string name) : name_(std::move(name)) {}

  void add(std::string name, Dtype dtype, Shape shape, std::vector<std::byte> bytes = {}) {
    tensors_.push_back({std::move(name), dtype, shape});
    bytes_.push_back(std::move(bytes));
  }

  std::string const& name() const noexcept override { return name_; }
  std::span<SourceTensor const> tensors() const noexcept override { return tensors_; }
  Json const& attributes() const noexcept override { return attributes_; }
  std::uint64_t bytes_on_disk() const noexcept override { return 0; }
  void read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const override {
    if (bytes_.at(tensor).empty()) {
      std::fill(out.begin(), out.end(), std::byte{0});
    } else {
      std::memcpy(out.data(), bytes_.at(tensor).data() + offset, out.size());
    }
  }
  std::vector<std::byte> const& bytes(std::size_t tensor) const { return bytes_.at(tensor); }

 private:
  std::string name_;
  std::vector<SourceTensor> tensors_{};
  std::vector<std::vector<std::byte>> bytes_{};
  Json attributes_ = Json::object();
};

/// A grid of sources that is filled tensor by tensor.
class SampleSet {
 public:
  explicit SampleSet(int tp, Json config = Json::object(), int pp = 1, int ep = 1) : tp_(tp), ep_(ep) {
    set_.tp = tp;
    set_.pp = pp;
    set_.ep = ep;
    set_.config = std::move(config);
    for (int p = 0; p < pp; ++p) {
      for (int e = 0; e < ep; ++e) {
        for (int t = 0; t < tp; ++t) {
          sources_.push_back(std::make_shared<SampleSource>("rank" + std::to_string(sources_.size())));
          set_.sources.push_back(sources_.back());
          set_.places.push_back({t, p, e});
        }
      }
    }
  }

  SampleSource& at(int t, int p = 0, int e = 0) { return *sources_.at(as_size((p * ep_ + e) * tp_ + t)); }

  /// Adds the same description to every tensor-parallel rank of a stage and expert rank.
  SampleSet& add(std::string const& name, Dtype dtype, Shape shape, int p = 0, int e = 0) {
    for (int t = 0; t < tp_; ++t) at(t, p, e).add(name, dtype, shape);
    return *this;
  }

  /// Returns the tensor `name` of each tensor-parallel rank; null for a rank that lacks it.
  std::vector<SourceTensor const*> shards(std::string_view name, int p = 0, int e = 0) {
    std::vector<SourceTensor const*> found;
    for (int t = 0; t < tp_; ++t) {
      found.push_back(nullptr);
      for (auto const& tensor : at(t, p, e).tensors()) {
        if (tensor.name == name) found.back() = &tensor;
      }
    }
    return found;
  }

  ShardSet& set() { return set_; }

 private:
  int tp_;
  int ep_;
  ShardSet set_{};
  std::vector<std::shared_ptr<SampleSource>> sources_{};
};

}  // namespace crossrank::checkpoint
