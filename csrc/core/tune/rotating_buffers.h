// Where the tensors of a measured sequence lie. The time of a kernel may swing by a tenth with
// that: cuDNN's split sums do. Knows nothing of plans and of time.
#pragma once

#include <vector>

#include "core/errors.h"
#include "core/tune/problem_sequence.h"

namespace torch_cudnn_ext {

class RotatingBuffers {
 public:
  explicit RotatingBuffers(ProblemSequence& sequence) : sequence_(sequence) {}

  // Moves the sequence to its next place. There is only one place if the tensors are large, since
  // these spread over the memory anyway, or if there is no room for more.
  void advance() {
    if (places_.size() == 1) return;
    try {
      if (places_.empty()) make_places();
      hold_outputs(places_[current_]);
      current_ = (current_ + 1) % places_.size();
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      places_ = {{sequence_.scratch, {}}};
      current_ = 0;
    }
    sequence_.scratch = places_[current_].scratch;
    places_[current_].held.clear();
  }
  void free() { places_.clear(); }

 private:
  struct Place {
    Bindings scratch;
    std::vector<at::Tensor> held;  // keep outputs from this place while another is used
  };

  void make_places() {
    constexpr size_t kPlaces = 4;
    constexpr int64_t kLargeBytes = 64 << 20;
    int64_t bytes = 0;
    for (const at::Tensor& t : sequence_.scratch.tensors) {
      if (t.defined() && t.has_storage()) bytes += static_cast<int64_t>(t.storage().nbytes());
    }
    places_.push_back({sequence_.scratch, {}});
    while (bytes <= kLargeBytes && places_.size() < kPlaces) {
      Place& place = places_.emplace_back(places_[0]);
      for (const Step& step : sequence_.steps()) sequence_.copy_inputs(step, place.scratch);
      hold_outputs(place);
    }
  }

  void hold_outputs(Place& place) const {
    const Step& last = sequence_.steps().back();
    for (const SlotSpec& slot : last.slots) {
      if (!sequence_.is_input(last, slot)) place.held.push_back(sequence_.empty_for(last, slot));
    }
  }

  ProblemSequence& sequence_;
  std::vector<Place> places_;
  size_t current_ = 0;
};

}  // namespace torch_cudnn_ext
