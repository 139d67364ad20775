// cuDNN's own random numbers: the descriptor of dropout, and the seed of its states.
//
// Note [cuDNN's random states]
// Each forward sets cuDNN's states up from the seed and the position of PyTorch's generator, which
// it advances. A mask depends on these alone, so torch.manual_seed and checkpointing repeat it.
// States kept from call to call would save the kernel that sets them up, and lose that.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

#include "backends/cudnn_legacy/descriptor.h"

namespace torch_cudnn_ext::legacy {

using DropoutDescriptor = Descriptor<cudnnDropoutDescriptor_t, cudnnCreateDropoutDescriptor,
                                     cudnnDestroyDropoutDescriptor>;

// A number that no two calls between two seedings share, for the device of `like`.
inline unsigned long long draw_seed(const at::Tensor& like) {
  constexpr uint64_t kStep = 4;  // PyTorch's generator advances by multiples of it
  at::Generator generator = at::globalContext().defaultGenerator(like.device());
  std::lock_guard<std::mutex> lock(generator.mutex());
  uint64_t offset = generator.get_offset();
  // PyTorch's own kernels advance it this way too. After set_offset() PyTorch would draw the states
  // of its own recurrent networks again.
  at::check_generator<at::CUDAGeneratorImpl>(generator)->set_philox_offset_per_thread(offset +
                                                                                      kStep);
  return generator.current_seed() + 0x9E3779B97F4A7C15ull * offset;
}

}  // namespace torch_cudnn_ext::legacy
