// An owner of one backend descriptor of cuDNN's graph API, and the failure that its calls raise.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "cudnn/handle.h"
#include "cudnn/status.h"

namespace torch_cudnn_ext::graph {

// Raised while building; becomes an Unsupported with the status as its reason. cuDNN's message is
// read at once: it stays until it is read, and would be taken for the next failure's.
struct Failure {
  Failure(cudnnStatus_t status, std::string what)
      : status(status), what(std::move(what)), why(cudnn_status_text(status)) {}

  cudnnStatus_t status;
  std::string what, why;

  Unsupported unsupported(const Device& device) const {
    // 3008: a run-time prerequisite, here the driver, is missing. 5001: a driver call failed.
    bool needs_driver = status == CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING ||
                        (status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER && device.is_target());
    return torch_cudnn_ext::unsupported(status, what + ": " + why, needs_driver);
  }
};

inline void check(cudnnStatus_t status, const char* what) {
  if (status != CUDNN_STATUS_SUCCESS) throw Failure(status, what);
}

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &handle_), "creating a descriptor");
  }
  ~Descriptor() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* values) {
    check(cudnnBackendSetAttribute(handle_, name, type, count, values), "setting an attribute");
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Dims& values) {
    return set(name, CUDNN_TYPE_INT64, values.size(), values.begin());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  Descriptor& finalise(const char* what) {
    check(cudnnBackendFinalize(handle_), what);
    return *this;
  }

  int64_t get_int64(cudnnBackendAttributeName_t name) const {
    int64_t value = 0, count = 0;
    check(cudnnBackendGetAttribute(handle_, name, CUDNN_TYPE_INT64, 1, &count, &value),
          "reading an attribute");
    return value;
  }
  // Up to `room` values: not every attribute tells how many there are if asked with a count of 0.
  template <class T>
  std::vector<T> get_list(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t room) const {
    std::vector<T> values(room);
    int64_t count = 0;
    check(cudnnBackendGetAttribute(handle_, name, type, room, &count, values.data()),
          "reading an attribute");
    values.resize(count);
    return values;
  }
  // Fills descriptors made beforehand, as the API wants it.
  std::vector<Descriptor> get_descriptors(cudnnBackendAttributeName_t name,
                                          cudnnBackendDescriptorType_t type, int64_t room) const {
    std::vector<Descriptor> list;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (int64_t i = 0; i < room; ++i) {
      list.emplace_back(type);
      handles.push_back(list.back().handle_);
    }
    int64_t count = 0;
    check(cudnnBackendGetAttribute(handle_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count,
                                   handles.data()),
          "reading an attribute");
    list.erase(list.begin() + count, list.end());
    return list;
  }

  cudnnBackendDescriptor_t get() const { return handle_; }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

}  // namespace torch_cudnn_ext::graph
