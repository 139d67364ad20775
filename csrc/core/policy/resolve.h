// Makes one policy of all levels, and remembers it.
#pragma once

#include <ATen/Context.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/policy/policy.h"

namespace torch_cudnn_ext {

// What PyTorch's own switches say at this moment, as bits.
struct Switches {
  static constexpr uint8_t kDeterministic = 1, kAllowTf32 = 2, kBenchmark = 4, kCudnnEnabled = 8;
  static constexpr uint8_t kTf32Products = 16;  // of matrices, which convolutions may be
  static constexpr uint8_t kStrict = 32;  // PyTorch raises if an algorithm is nondeterministic
  // torch.backends.cudnn.depthwise_kernel of convolutions, if it is not "auto".
  static constexpr uint8_t kDepthwiseCudnn = 64, kDepthwiseNative = 128;
  uint8_t bits = 0;
  bool has(uint8_t bit) const { return (bits & bit) != 0; }
};
// Whether PyTorch's switch lets this kind of operation use TF32 on CUDA.
bool is_tf32(at::Float32Op op);

// All levels in one. Interned: equal ones are one object, which is never freed.
struct ResolvedPolicy {
  Policy policy;
  Policy argument;  // what the call asked for: the only level that rules are weaker than
  Policy enabled;   // what enable() says: its autotune does not demand that this call is tuned
  std::string text;
  // As an argument this text gives the same policy at any later time, on any thread.
  std::string saved;
  Switches switches;
  // Set if only cudnn.deterministic, or use_deterministic_algorithms with warn_only, asks for
  // determinism: PyTorch then runs its own kernel even if that is nondeterministic.
  bool baseline_may_be_nondeterministic = false;
  int64_t id;
};
const ResolvedPolicy& resolve_policy(std::string_view family,
                                     std::optional<std::string_view> argument);
// The argument and PyTorch's switches, without the levels between them.
const ResolvedPolicy& resolve_alone(const std::string& family, std::string_view argument);
// The policy with rules for one problem, which are stronger than all but the argument.
const ResolvedPolicy& add_rules(const ResolvedPolicy& resolved, const Policy& rules,
                                std::string_view family);
// `saved` with more asked for at the call, such as the algorithm that another pass ran.
std::string saved_with(const ResolvedPolicy& resolved, const Policy& more, std::string_view family);

}  // namespace torch_cudnn_ext
