// A search over engine knobs: hill climbing from the best engines while it helps. Knows nothing of
// how algorithms are measured.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <vector>

#include "core/backend.h"

namespace torch_cudnn_ext {

// `best_first` gives what was measured so far. `measure` measures algorithms; it returns false if
// none of them ran, or if no time is left.
inline void search_knobs(const Problem& problem, const Device& device,
                         c10::function_ref<std::vector<Algorithm>()> best_first,
                         c10::function_ref<bool(const std::vector<Algorithm>&)> measure) {
  constexpr size_t kEngines = 3;
  std::vector<Algorithm> starts;
  for (const Algorithm& algorithm : best_first()) {
    bool known = std::any_of(starts.begin(), starts.end(), [&](const Algorithm& start) {
      return start.backend == algorithm.backend && start.name == algorithm.name;
    });
    if (!known && starts.size() < kEngines) starts.push_back(algorithm);
  }
  for (Algorithm& from : starts) {
    const BackendOperator* op = find_backend(from.backend)->find(family_of(problem));
    if (op == nullptr || !op->neighbours) continue;
    while (measure(op->neighbours(problem, from, device))) {
      std::vector<Algorithm> list = best_first();
      auto best = std::find_if(list.begin(), list.end(),
                               [&](const Algorithm& a) { return a.name == from.name; });
      if (best == list.end() || *best == from) break;
      from = *best;
    }
  }
}

}  // namespace torch_cudnn_ext
