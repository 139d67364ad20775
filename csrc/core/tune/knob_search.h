// A search over engine knobs: hill climbing from the best engines while it helps. Knows nothing of
// how algorithms are measured.
#pragma once

#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/backend.h"

namespace torch_cudnn_ext {

class KnobSearch {
 public:
  using BestFirst = c10::function_ref<std::vector<Algorithm>()>;
  // Measures algorithms. False if none of them ran, or if no time is left.
  using Try = c10::function_ref<bool(const std::vector<Algorithm>&)>;

  KnobSearch(BestFirst best_first, Try try_all) : best_first_(best_first), try_all_(try_all) {}

  void run(const Problem& problem, const Device& device) const {
    for (const Algorithm& start : starting_points()) {
      const BackendOperator* op = find_backend(start.backend)->find(family_of(problem));
      if (op == nullptr || !op->neighbours) continue;
      std::optional<Algorithm> from = start;
      while (from && try_all_(op->neighbours(problem, *from, device))) from = next_step(*from);
    }
  }

 private:
  // The best algorithm of each of the best engines.
  std::vector<Algorithm> starting_points() const {
    constexpr size_t kEngines = 3;
    std::vector<Algorithm> starts;
    for (const Algorithm& algorithm : best_first_()) {
      bool known = std::any_of(starts.begin(), starts.end(), [&](const Algorithm& start) {
        return start.backend == algorithm.backend && start.name == algorithm.name;
      });
      if (!known && starts.size() < kEngines) starts.push_back(algorithm);
    }
    return starts;
  }

  // The engine's best algorithm, unless that is `from`.
  std::optional<Algorithm> next_step(const Algorithm& from) const {
    for (const Algorithm& best : best_first_()) {
      if (best.name == from.name) return best == from ? std::nullopt : std::optional(best);
    }
    return std::nullopt;
  }

  const BestFirst best_first_;
  const Try try_all_;
};

}  // namespace torch_cudnn_ext
