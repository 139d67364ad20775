#include "cudnn/handle.h"

#include <c10/util/StringUtil.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <set>

#include "torch/internals.h"

namespace torch_cudnn_ext {

cudnnHandle_t cudnn_handle() { return current_cudnn_handle(); }

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

at::Tensor empty_on_cuda(const TensorSpec& spec, const at::Tensor& like) {
  return empty_strided_on_cuda(spec.sizes, spec.strides, spec.dtype, like.device());
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
    for (const std::string& file : cudnn_files()) {
      char resolved[PATH_MAX];
      std::string real = realpath(file.c_str(), resolved) != nullptr ? resolved : file;
      folders.insert(real.substr(0, real.rfind('/')));
    }
    TORCH_CHECK(folders.size() <= 1, "cuDNN's files were loaded from more than one folder: ",
                c10::Join(", ", std::vector<std::string>(folders.begin(), folders.end())),
                ". Such a mix can crash or compute wrong results even when the versions agree. "
                "Remove the other cuDNN from LD_LIBRARY_PATH and from the loader's search path");
  });
}

}  // namespace torch_cudnn_ext
