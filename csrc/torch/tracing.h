// Whether PyTorch follows operators instead of computing with them.
#pragma once

namespace torch_cudnn_ext {

// Whether this thread traces for torch.compile, torch.export or fake tensors.
bool is_tracing();

}  // namespace torch_cudnn_ext
