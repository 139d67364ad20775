// Tries algorithms on a problem, one by one, and remembers why an algorithm cannot run. Knows
// nothing of what the policy selects.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan.h"
#include "core/select/decision_record.h"

namespace torch_cudnn_ext {

// The algorithms of a problem in the order in which they are tried if nothing was measured: the
// family's own order, on the CPU PyTorch's own first, then those of all other backends.
std::vector<Algorithm> algorithms_in_order(const Problem& problem, const Device& device);

// An algorithm's plan, and why this algorithm is taken. There is no plan if nothing can run.
struct Found {
  std::shared_ptr<Plan> plan;
  std::optional<int64_t> workspace_bytes;
  std::string why;

  explicit operator bool() const { return plan != nullptr; }
};

struct Attempts {
  // Finds an algorithm's plan, if it can be built and the constraints admit it. An algorithm that
  // did not support the problem at an earlier run is tried only if `retries`.
  Found try_algorithm(const Request& request, const Algorithm& algorithm, const std::string& why,
                      bool retries = false);
  // Finds the first algorithm in order; with prefer=memory, the one with the smallest workspace.
  Found try_in_order(const Request& request, const std::string& why);

  // Some algorithms other than the pin that can run, as text. It does not list all, since cuDNN may
  // take seconds for one.
  std::string others_that_run(const Request& request, const Algorithm& pinned) const;
  // Each reason once, with the first algorithm that it holds for.
  std::string reasons() const;

  // Algorithms and backends that cannot run, and why.
  std::vector<std::pair<std::string, std::string>> ruled_out;
  bool is_transient = false;  // whether one of them may run at another time
};

}  // namespace torch_cudnn_ext
