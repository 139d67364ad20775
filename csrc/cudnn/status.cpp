#include "cudnn/status.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "core/errors.h"

namespace torch_cudnn_ext {

namespace {

std::string last_message() {
  char message[1024] = "";
  cudnnGetLastErrorString(message, sizeof(message));
  return message;
}

bool is_out_of_memory(cudnnStatus_t status) {
  return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
         status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

// Statuses about the request itself. Nothing has run then.
bool is_unsupported(cudnnStatus_t status) {
  return status >= CUDNN_STATUS_BAD_PARAM && status < CUDNN_STATUS_INTERNAL_ERROR;
}

}  // namespace

std::string cudnn_status_text(cudnnStatus_t status) {
  std::string text = c10::str(cudnnGetErrorString(status), " (", static_cast<int>(status), ")");
  std::string message = last_message();
  return message.empty() ? text : c10::str(text, ": ", message);
}

void forget_cudnn_messages() { last_message(); }

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
  if (is_unsupported(status)) throw UnsupportedAtRun(here, text);
  throw c10::Error(here, text);
}

}  // namespace torch_cudnn_ext
