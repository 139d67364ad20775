// The addresses of the tensors of a measured sequence. The time of a kernel may swing by a tenth
// with them, as for cuDNN's split sums. Knows nothing of plans and of time.
#pragma once

#include <vector>

#include "core/errors.h"
#include "core/tune/problem_sequence.h"

namespace torch_cudnn_ext {

class RotatingBuffers {
 public:
  explicit RotatingBuffers(ProblemSequence& sequence) : sequence_(sequence) {}

  // Moves the sequence to its next set. There is only one set if the tensors are large, since
  // these spread over the memory anyway, or if there is no room for more.
  void advance() {
    if (sets_.size() == 1) return;
    try {
      if (sets_.empty()) make_sets();
      hold_outputs(sets_[current_]);
      current_ = (current_ + 1) % sets_.size();
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      sets_ = {{sequence_.scratch, {}}};
      current_ = 0;
    }
    sequence_.scratch = sets_[current_].scratch;
    sets_[current_].held.clear();
  }
  void free() { sets_.clear(); }

 private:
  struct BufferSet {
    Bindings scratch;
    std::vector<at::Tensor> held;  // keep outputs from this set while another is used
  };

  void make_sets() {
    constexpr size_t kSets = 4;
    constexpr int64_t kLargeBytes = 64 << 20;
    int64_t bytes = 0;
    for (const at::Tensor& t : sequence_.scratch.tensors) {
      if (t.defined() && t.has_storage()) bytes += static_cast<int64_t>(t.storage().nbytes());
    }
    sets_.push_back({sequence_.scratch, {}});
    while (bytes <= kLargeBytes && sets_.size() < kSets) {
      BufferSet& set = sets_.emplace_back(sets_[0]);
      for (const Step& step : sequence_.steps()) sequence_.copy_inputs(step, set.scratch);
      hold_outputs(set);
    }
  }

  void hold_outputs(BufferSet& set) const {
    const Step& last = sequence_.steps().back();
    for (const SlotSpec& slot : last.slots) {
      if (!sequence_.is_input(last, slot)) set.held.push_back(sequence_.empty_for(last, slot));
    }
  }

  ProblemSequence& sequence_;
  std::vector<BufferSet> sets_;
  size_t current_ = 0;
};

}  // namespace torch_cudnn_ext
