// An object of a thread that PyTorch passes on to the autograd threads that work for the thread. It
// is stored where PyTorch stores Python objects.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "torch/internals.h"

namespace torch_cudnn_ext {

// `T` derives from this and has its own kKey.
template <class T>
struct ThreadState : ThreadObject {
  ThreadState() : ThreadObject(nullptr, nullptr) { ++count; }  // holds no Python object
  ~ThreadState() { --count; }

  // The object of this thread or of the thread that it works for; nullptr if there is none.
  static std::shared_ptr<T> here() {
    if (count.load(std::memory_order_relaxed) == 0) return nullptr;
    if (!ThreadObjects::contains(T::kKey)) return nullptr;
    return std::static_pointer_cast<T>(ThreadObjects::get(T::kKey));
  }
  static void set(std::shared_ptr<T> object) { ThreadObjects::set(T::kKey, std::move(object)); }

 private:
  static inline std::atomic<int64_t> count{0};  // objects of all threads; without any, no lookup
};

}  // namespace torch_cudnn_ext
