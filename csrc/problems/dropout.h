// The problem of dropout.
#pragma once

#include "core/base/tensor_spec.h"
#include "problems/common.h"

namespace torch_cudnn_ext {

enum class RandomStream : uint8_t { philox, cudnn };  // PyTorch's generator, or cuDNN's own
inline constexpr EnumName<RandomStream> kRandomStreams[] = {{RandomStream::philox, "philox"},
                                                            {RandomStream::cudnn, "cudnn"}};
inline const auto& enum_names(RandomStream) { return kRandomStreams; }

// Each element of a dense tensor is zero with probability p, else divided by 1 - p.
struct DropoutProblem {
  static constexpr const char* kFamily = "dropout";

  Pass pass = Pass::fwd;
  TensorSpec x;  // all elements in the order of memory: [numel]
  double p = 0.5;
  RandomStream rng = RandomStream::philox;
  bool train = true;  // of fwd: whether the mask is saved for a backward
  // Fixed: passes that share a mask share one decision, whatever the addresses of their tensors.
  static constexpr int64_t alignment = 16;

  void canonicalise() {
    canonicalise_strides({&x});
    train = train || pass == Pass::bwd;
  }
  void validate() const;

  template <class Self, class Visitor>
  static void fields(Self& p, Visitor&& visit) {
    visit.required("x", p.x);
    visit.written("p", p.p, 0.5);
    visit.written("rng", p.rng, RandomStream::philox);
    visit.optional("train", p.train, true);
  }
};

}  // namespace torch_cudnn_ext
