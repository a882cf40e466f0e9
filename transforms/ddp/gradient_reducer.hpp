#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <crossrank/collective.hpp>
#include <crossrank/transforms.hpp>

namespace crossrank::transforms {

/// Averages the gradients of a model in buckets while the backward pass computes more of them.
///
/// Buckets hold gradients of one dtype, at first in reverse order of the parameters. All ranks reduce them in the same
/// order. After the first step they are built anew in the order in which the gradients of rank 0 became ready.
class GradientReducer {
 public:
  GradientReducer(std::vector<std::shared_ptr<Parameter>> parameters, Collective group, DDPTransformConfig config);

  /// Begins a backward pass. Without `sync`, gradients stay on this rank.
  void begin(bool sync);
  /// Notes that a gradient is complete, and starts the buckets that are complete with it.
  void ready(Parameter& parameter);
  /// Waits until all gradients are reduced. `UsageError` names parameters without a gradient.
  void finish();
  /// Forgets a pass that an exception has ended.
  void drop() noexcept;
  void set_hook(CommunicationHook hook);
  [[nodiscard]] std::vector<std::vector<std::string>> names() const;

 private:
  struct Bucket {
    std::vector<std::size_t> members{};  ///< places in `entries_`
    std::int64_t elements = 0;
    Tensor gradients{};
    Tensor sent{};  ///< what the ranks average: the gradients, or what the hook made of them
    Request request{};
    std::size_t missing = 0;
  };
  struct Entry {
    std::shared_ptr<Parameter> parameter{};
    std::size_t bucket = 0;
    std::int64_t offset = 0;
    bool is_ready = false;
    bool is_used = false;   ///< has got a gradient since the last reduction
    bool had_none = false;  ///< no gradient before this pass
  };

  [[nodiscard]] std::vector<std::string> names_in(Bucket const& bucket) const;
  void build(std::vector<std::size_t> const& order);
  void rebuild();
  [[nodiscard]] Tensor view_of(Entry const& entry) const;
  void attach(Entry& entry);
  void start_complete_buckets();
  void complete_missing(std::vector<std::size_t> const& missing);
  void take_back(Entry& entry, bool used);
  void check_order() const;
  [[noreturn]] void refuse(std::string message, std::string got, std::string resource, std::string hint = {}) const;

  Collective group_;
  DDPTransformConfig config_;
  CommunicationHook hook_{};
  std::vector<std::shared_ptr<Parameter>> frozen_{};
  std::vector<Entry> entries_{};
  std::unordered_map<Parameter const*, std::size_t> places_{};
  std::vector<Bucket> buckets_{};
  std::vector<std::size_t> order_{};        ///< in which gradients became ready in this pass
  std::vector<std::size_t> first_order_{};  ///< in the first pass
  std::size_t next_ = 0;                    ///< first bucket that has not been started
  bool sync_ = false;
  bool rebuilt_ = false;
};

}  // namespace crossrank::transforms
