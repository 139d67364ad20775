// The random numbers of dropout in recurrent networks. Each forward fills cuDNN's states anew from
// the seed and the position of PyTorch's generator, for the reasons of Note [cuDNN's random
// states]. While a stream is captured the generator cannot be read: the graph goes on with the
// states that the last run before it left, and they outlive the plan.
#pragma once

#include <memory>

#include "backends/cudnn_legacy/random.h"

namespace torch_cudnn_ext::legacy {

struct RandomStates;

class RnnDropout {
 public:
  // Sets the descriptor; the states are filled before a forward reads them.
  cudnnStatus_t set(double probability, c10::Device device);
  // Before a forward, and after it.
  void prepare();
  void used();

  cudnnDropoutDescriptor_t get() const { return descriptor_.get(); }

 private:
  DropoutDescriptor descriptor_;
  std::shared_ptr<RandomStates> states_;  // null without dropout
  float probability_ = 0;
};

}  // namespace torch_cudnn_ext::legacy
