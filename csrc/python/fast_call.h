// Calls of conv1d to conv_transpose3d from Python with the argument parser that PyTorch's own
// functions use. The generic one of torch.ops costs two microseconds more a call, a third of what
// the whole call takes.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_cudnn_ext {

// Puts them behind torch.ops.torch_cudnn_ext.<name>.default; what they leave (arguments with
// __torch_function__) still goes the generic way.
void install_fast_calls(pybind11::module_& module);

}  // namespace torch_cudnn_ext
