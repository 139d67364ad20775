// The compute capabilities of GPUs. Knows no CUDA: whoever asks a GPU registers how.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"

namespace torch_cudnn_ext {

// 90 for compute capability 9.0; 0 if it is unknown, and for what is no GPU.
int capability_of(const Device& device);

// `of_cuda` takes the index of a CUDA device. Returns true, so that a constant at namespace scope
// registers it.
bool register_capability(int (*of_cuda)(int index));

// A number among a target's properties; nullopt if there is none of this name.
std::optional<int64_t> number_in_properties(const Device& target, const char* name);

}  // namespace torch_cudnn_ext
