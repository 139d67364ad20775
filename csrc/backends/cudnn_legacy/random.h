// Random numbers of cuDNN's own: the descriptor of dropout, and what its states are made from.
//
// Note [cuDNN's random states]
// Each forward sets up cuDNN's states anew, from the seed and the position of PyTorch's generator,
// and moves that on: so a mask depends on these alone, torch.manual_seed and checkpointing repeat
// it. States that live on from call to call would spare the kernel that does it, and lose that.
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
  constexpr uint64_t kStep = 4;  // PyTorch's generator moves by multiples of it
  at::Generator generator = at::globalContext().defaultGenerator(like.device());
  std::lock_guard<std::mutex> lock(generator.mutex());
  uint64_t offset = generator.get_offset();
  // As PyTorch's own kernels move it: set_offset() would make PyTorch draw its own recurrent
  // networks' states anew.
  at::check_generator<at::CUDAGeneratorImpl>(generator)->set_philox_offset_per_thread(offset +
                                                                                      kStep);
  return generator.current_seed() + 0x9E3779B97F4A7C15ull * offset;
}

}  // namespace torch_cudnn_ext::legacy
