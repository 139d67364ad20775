#include "ops/typed_call.h"

namespace torch_cudnn_ext {

std::map<std::string, TypedCall>& typed_calls() {
  static auto* calls = new std::map<std::string, TypedCall>();
  return *calls;
}

}  // namespace torch_cudnn_ext
