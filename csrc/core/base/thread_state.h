// What PyTorch hands on from a thread to autograd's threads that work for it: an object of ours, in
// the place of a Python one.
#pragma once

#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/SafePyObject.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace torch_cudnn_ext {

// `T` derives from this, and has a kKey of its own.
template <class T>
struct ThreadState : c10::SafePyObject {
  ThreadState() : SafePyObject(nullptr, nullptr) { ++count; }  // of no Python object
  ~ThreadState() { --count; }

  // This thread's own, or what was handed to it; nullptr for neither.
  static std::shared_ptr<T> here() {
    using at::impl::ThreadLocalPythonObjects;
    if (count.load(std::memory_order_relaxed) == 0) return nullptr;
    if (!ThreadLocalPythonObjects::contains(T::kKey)) return nullptr;
    return std::static_pointer_cast<T>(ThreadLocalPythonObjects::get(T::kKey));
  }
  static void set(std::shared_ptr<T> object) {
    at::impl::ThreadLocalPythonObjects::set(T::kKey, std::move(object));
  }

 private:
  static inline std::atomic<int64_t> count{0};  // of all threads: without any, nobody looks for it
};

}  // namespace torch_cudnn_ext
