#include "core/local_errata.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

namespace torch_cudnn_ext {

namespace {

struct LocalErrata {
  std::mutex mutex;
  std::vector<LocalErratum> rows;
  std::atomic<bool> is_empty{true};  // read without the mutex
};
LocalErrata& local_errata() {
  static auto* made = new LocalErrata();
  return *made;
}

}  // namespace

void set_local_errata(std::vector<LocalErratum> errata) {
  std::lock_guard<std::mutex> lock(local_errata().mutex);
  local_errata().rows = std::move(errata);
  local_errata().is_empty = local_errata().rows.empty();
}

std::optional<Unsupported> unsupported_by_local_erratum(const Problem& problem,
                                                        const Algorithm& algorithm,
                                                        const Device& device) {
  if (local_errata().is_empty) return std::nullopt;
  std::string line = problem_text(problem), name = algorithm.text();
  std::string fingerprint = fingerprint_of(device);
  std::lock_guard<std::mutex> lock(local_errata().mutex);
  const auto& rows = local_errata().rows;
  auto found = std::find_if(rows.begin(), rows.end(), [&](const LocalErratum& one) {
    return one.algorithm == name && one.problem == line && one.device == fingerprint;
  });
  if (found == rows.end()) return std::nullopt;
  return Unsupported{found->reason};
}

}  // namespace torch_cudnn_ext
