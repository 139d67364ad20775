// Searches inside calls: measuring a problem when it is first met. They may take a bounded time in
// all, and tell the user at a terminal what they do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/select/decision_record.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

// How long all searches of the process may take together; nullopt: without a limit. A search that
// began is finished. Returns whether the budget changed.
bool set_search_budget(std::optional<double> seconds);
bool is_search_budget_spent();

struct SearchResult {
  std::vector<Measurement> measured;
  std::string obstacle;  // why nothing was measured, or all failed; empty otherwise
  std::string detail;    // of the obstacle; may be empty
};
// Measures the problem, for no longer than a call may take.
SearchResult search(const Request& request);
inline constexpr const char* kNoMemory = "no memory to tune in";

struct SearchCounts {
  int64_t problems = 0;
  double seconds = 0;
};
SearchCounts search_counts();  // of this process

}  // namespace torch_cudnn_ext
