// What every call of cuDNN needs: the handle, data types, tensors for results, and that all of the
// library's files come from one folder. Knows nothing of problems beyond their tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <cudnn.h>

#include <string>
#include <vector>

#include "problems/problem.h"

namespace torch_cudnn_ext {

// PyTorch's handle of the current device, set to the current stream.
cudnnHandle_t cudnn_handle();

cudnnDataType_t cudnn_type(c10::ScalarType dtype);

at::Tensor empty_on_cuda(const TensorSpec& spec, const at::Tensor& like);

// Paths of the libcudnn files in this process, in order of loading.
std::vector<std::string> cudnn_files();
// Throws if they lie in more than one folder: such a mix can report equal versions and still crash.
// Checks once. The first plan must have made cuDNN load its sub-libraries before.
void check_cudnn_files_once();

}  // namespace torch_cudnn_ext
