// What both cuDNN backends need of the library: handle, status texts, data types, and that all of
// its files come from one folder.
#pragma once

#include <cudnn.h>

#include <string>
#include <vector>

#include "core/device.h"
#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// PyTorch's handle of the current device, set to the current stream.
cudnnHandle_t cudnn_handle();

// "CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3004): why", with what cuDNN last said where it says anything.
std::string cudnn_status_text(cudnnStatus_t status);
// Reads what it last said, which stays until then.
void forget_cudnn_messages();
// The same of a plan that cannot be built: not for good where cuDNN had no memory.
Unsupported unsupported(cudnnStatus_t status, const std::string& reason, bool needs_driver = false);
// The same status raised as an error of an execution: OutOfMemoryError where cuDNN had no memory,
// UnsupportedAtRun where it does not take what was asked.
void check_cudnn(cudnnStatus_t status, const char* call);
[[noreturn]] void raise_cudnn(cudnnStatus_t status, const std::string& call,
                              const std::string& why);

// Whether this is the version that defects were looked for in, by running every engine.
inline bool is_cudnn_9_19() { return cudnnGetVersion() / 100 == 919; }

// Whether the maximum of a window that holds -inf alone comes out as the lowest finite number. It
// does with 9.19; 9.28 gives -inf.
inline bool pools_to_lowest() { return cudnnGetVersion() < 92800; }

cudnnDataType_t cudnn_type(c10::ScalarType dtype);
cudnnReduceTensorOp_t cudnn_reduction(ReduceKind kind);

// cuDNN's classic API, and its fast engines, know space in two or three dimensions: a convolution
// over one is the same over a plane of height 1.
ConvolutionProblem lift_to_plane(const ConvolutionProblem& problem);

// Marks a Winograd algorithm. For kernels of 5x5 cuDNN 9 takes tiles of 13x13, whose transforms
// cost some 13 bits: relative errors of 2e-4 to 4e-3 on float32 data (measured on an H200
// with 9.19). Images come out clamped to the finite numbers of float32, and NaN as the lowest one
// (seen on an H100 with 9.19).
void add_winograd_notes(Notes& notes, const ConvolutionProblem& problem);

at::Tensor empty_on_cuda(const TensorSpec& spec, const at::Tensor& like);

// Paths of the libcudnn files in this process, in order of loading.
std::vector<std::string> cudnn_files();
// Throws when they lie in more than one folder: such a mix can report equal versions and still
// crash. Looks once, after the first plan has made cuDNN load its sub-libraries.
void check_cudnn_files_once();

}  // namespace torch_cudnn_ext
