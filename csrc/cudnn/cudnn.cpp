#include "cudnn/cudnn.h"

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cudnn/Handle.h>
#include <c10/util/StringUtil.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <set>

#include "core/errors.h"

namespace torch_cudnn_ext {

cudnnHandle_t cudnn_handle() { return at::native::getCudnnHandle(); }

std::string cudnn_status_text(cudnnStatus_t status) {
  std::string text = c10::str(cudnnGetErrorString(status), " (", static_cast<int>(status), ")");
  char message[1024] = "";
  cudnnGetLastErrorString(message, sizeof(message));
  if (message[0] != '\0') text += c10::str(": ", message);
  return text;
}

void forget_cudnn_messages() {
  char message[1024];
  cudnnGetLastErrorString(message, sizeof(message));
}

namespace {

bool is_out_of_memory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

// Of the request itself: nothing was begun.
bool is_refusal(cudnnStatus_t status) {
  return status >= CUDNN_STATUS_BAD_PARAM && status < CUDNN_STATUS_INTERNAL_ERROR;
}

}  // namespace

Unsupported unsupported(cudnnStatus_t status, const std::string& reason, bool needs_driver) {
  return {reason, needs_driver, is_out_of_memory(status)};
}

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) raise_cudnn(status, call, cudnn_status_text(status));
}

void raise_cudnn(cudnnStatus_t status, const std::string& call, const std::string& why) {
  c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  std::string text = c10::str(call, " failed with ", why);
  if (is_out_of_memory(status)) throw c10::OutOfMemoryError(here, text);
  if (is_refusal(status)) throw UnsupportedAtRun(here, text);
  throw c10::Error(here, text);
}

cudnnDataType_t cudnn_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
      return CUDNN_DATA_DOUBLE;
    case c10::ScalarType::Float:
      return CUDNN_DATA_FLOAT;
    case c10::ScalarType::Half:
      return CUDNN_DATA_HALF;
    case c10::ScalarType::BFloat16:
      return CUDNN_DATA_BFLOAT16;
    case c10::ScalarType::Char:
      return CUDNN_DATA_INT8;
    default:
      TORCH_CHECK(false, "cuDNN has no data type for ", c10::toString(dtype));
  }
}

cudnnReduceTensorOp_t cudnn_reduction(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::add:
      return CUDNN_REDUCE_TENSOR_ADD;
    case ReduceKind::mul:
      return CUDNN_REDUCE_TENSOR_MUL;
    case ReduceKind::min:
      return CUDNN_REDUCE_TENSOR_MIN;
    case ReduceKind::max:
      return CUDNN_REDUCE_TENSOR_MAX;
    case ReduceKind::absmax:
      return CUDNN_REDUCE_TENSOR_AMAX;
    case ReduceKind::mean:
      return CUDNN_REDUCE_TENSOR_AVG;
    case ReduceKind::norm1:
      return CUDNN_REDUCE_TENSOR_NORM1;
    case ReduceKind::norm2:
      return CUDNN_REDUCE_TENSOR_NORM2;
    case ReduceKind::mul_no_zeros:
      return CUDNN_REDUCE_TENSOR_MUL_NO_ZEROS;
  }
  TORCH_INTERNAL_ASSERT(false);
}

namespace {

TensorSpec lift(const TensorSpec& spec) {
  TensorSpec out{spec.dtype, {spec.sizes[0], spec.sizes[1], 1, spec.sizes[2]}, {}};
  if (spec.strides == contiguous_strides(spec.sizes)) {
    out.strides = contiguous_strides(out.sizes);
  } else if (spec.strides == channels_last_strides(spec.sizes)) {
    out.strides = channels_last_strides(out.sizes);
  } else {
    out.strides = {spec.strides[0], spec.strides[1], spec.sizes[2] * spec.strides[2],
                   spec.strides[2]};
  }
  return out;
}

std::string folder_of(const std::string& path) {
  char resolved[PATH_MAX];
  std::string real = realpath(path.c_str(), resolved) != nullptr ? resolved : path;
  return real.substr(0, real.rfind('/'));
}

}  // namespace

ConvolutionProblem lift_to_plane(const ConvolutionProblem& problem) {
  if (problem.spatial_dims() != 1) return problem;
  ConvolutionProblem out = problem;
  out.x = lift(problem.x);
  out.w = lift(problem.w);
  out.y = lift(problem.y);
  out.padding = {0, problem.padding[0]};
  out.stride = {1, problem.stride[0]};
  out.dilation = {1, problem.dilation[0]};
  return out;
}

void add_winograd_notes(Notes& notes, const ConvolutionProblem& problem) {
  notes.add(Note::winograd);
  for (int i = 2; i < problem.w.sizes.size(); ++i) {
    if (problem.w.sizes[i] >= 5) notes.add(Note::low_accuracy);
  }
  if (problem.pass != ConvolutionPass::bwd_filter) notes.add(Note::reduced_range);
}

at::Tensor empty_on_cuda(const TensorSpec& spec, const at::Tensor& like) {
  return at::detail::empty_strided_cuda(spec.sizes, spec.strides, spec.dtype, like.device());
}

std::vector<std::string> cudnn_files() {
  std::vector<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        std::string path = info->dlpi_name;
        bool is_cudnn = path.find("/libcudnn") != std::string::npos;
        if (is_cudnn) static_cast<std::vector<std::string>*>(out)->push_back(path);
        return 0;
      },
      &files);
  return files;
}

void check_cudnn_files_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::set<std::string> folders;
    for (const std::string& file : cudnn_files()) folders.insert(folder_of(file));
    TORCH_CHECK(folders.size() <= 1, "cuDNN's files were loaded from more than one folder: ",
                c10::Join(", ", std::vector<std::string>(folders.begin(), folders.end())),
                ". Such a mix can crash or compute wrong results even when the versions agree. "
                "Remove the other cuDNN from LD_LIBRARY_PATH and from the loader's search path");
  });
}

}  // namespace torch_cudnn_ext
