// cuDNN's statuses: their texts, and what becomes of them while building and while running.
#pragma once

#include <cudnn.h>

#include <string>

#include "core/plan.h"

namespace torch_cudnn_ext {

// "CUDNN_STATUS_NOT_SUPPORTED_SHAPE (3004): why". The reason is cuDNN's last message, if any.
std::string cudnn_status_text(cudnnStatus_t status);
// Discards cuDNN's last message, which stays until it is read.
void forget_cudnn_messages();

// A plan that cannot be built; transient if cuDNN found no memory.
Unsupported unsupported(cudnnStatus_t status, const std::string& reason, bool needs_driver = false);

// Errors of an execution: OutOfMemoryError if cuDNN found no memory, UnsupportedAtRun if it does
// not take the problem.
void check_cudnn(cudnnStatus_t status, const char* call);
[[noreturn]] void raise_cudnn(cudnnStatus_t status, const std::string& call,
                              const std::string& why);

}  // namespace torch_cudnn_ext
