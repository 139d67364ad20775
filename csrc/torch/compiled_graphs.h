// What enable() changes in compiled graphs, which torch.compile makes. Names no operator.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "torch/internals.h"

namespace torch_cudnn_ext {

// Which of our operators compiled graphs run: none; convolutions and recurrent networks; or all
// that eager code runs.
enum class CompiledUse : uint8_t { none, conv, all };

// How an overridden operator takes part under CompiledUse::conv.
enum class InGraphs : uint8_t {
  left,         // not at all: the compiler fuses PyTorch's operator with its neighbours
  called,       // the graph has PyTorch's operator, and ours runs where the graph's code calls it
  only_called,  // the same, and calls from elsewhere run PyTorch's
  traced,       // the graph has our operator
};

// Of "conv", "all" and "none"; throws ValueError for any other text.
CompiledUse compiled_use(const std::string& text);

class CompiledGraphs {
 public:
  static void set_use(CompiledUse use) { use_.store(use, std::memory_order_relaxed); }

  // Whether this thread runs the code of a compiled graph; the setter returns what held before.
  static bool is_running() { return running_; }
  static bool set_running(bool running) { return std::exchange(running_, running); }

  // Whether PyTorch's own kernel runs here and now.
  static bool leaves(InGraphs part) {
    CompiledUse use = use_.load(std::memory_order_relaxed);
    bool only_called = part == InGraphs::only_called;
    if (use == CompiledUse::all) return only_called;
    bool conv = use == CompiledUse::conv;
    if (running_) return !(conv && (only_called || part == InGraphs::called));
    if (only_called) return true;
    return has_dispatch_mode() && is_tracing() && !(conv && part == InGraphs::traced);
  }

 private:
  static inline std::atomic<CompiledUse> use_{CompiledUse::conv};
  static inline thread_local bool running_ = false;
};

}  // namespace torch_cudnn_ext
