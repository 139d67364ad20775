#include "core/select/search.h"

#include <c10/util/ScopeExit.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/tune/isolation.h"
#include "core/tune/measure.h"

namespace torch_cudnn_ext {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Searches {
  std::mutex mutex;  // guards what follows
  std::optional<double> budget_s;
  SearchCounts counts;
};
Searches& searches() {
  static auto* state = new Searches();
  return *state;
}

// A line on the terminal that is written again and again, once searches have taken a while.
class Notice {
 public:
  explicit Notice(const Problem& problem) : problem_(problem_text(problem)) {}
  ~Notice() {
    if (is_shown_) std::fputs("\r\033[K", stderr);
  }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;

  void update(int done, int total) {
    constexpr double kPatienceS = 2, kBetweenS = 0.2;
    constexpr size_t kWidth = 60;  // of the problem
    static const bool is_terminal = isatty(STDERR_FILENO) != 0;
    double here = seconds_from(start_);
    SearchCounts before = search_counts();
    if (!is_terminal || before.seconds + here < kPatienceS || here < next_) return;
    next_ = here + kBetweenS;
    is_shown_ = true;
    std::fprintf(stderr,
                 "\rtorch_cudnn_ext: tuning, %lld before, %.0f s in all: %s (%d of %d)\033[K",
                 static_cast<long long>(before.problems), before.seconds + here,
                 problem_.substr(0, kWidth).c_str(), done + 1, total);
    std::fflush(stderr);
  }

 private:
  const std::string problem_;
  const Clock::time_point start_ = Clock::now();
  double next_ = 0;
  bool is_shown_ = false;
};

}  // namespace

bool set_search_budget(std::optional<double> seconds) {
  std::lock_guard<std::mutex> lock(searches().mutex);
  return std::exchange(searches().budget_s, seconds) != seconds;
}

bool is_search_budget_spent() {
  std::lock_guard<std::mutex> lock(searches().mutex);
  return searches().budget_s && searches().counts.seconds >= *searches().budget_s;
}

SearchCounts search_counts() {
  std::lock_guard<std::mutex> lock(searches().mutex);
  return searches().counts;
}

namespace {

std::vector<Measurement> measure_in_call(const Request& request) {
  const auto& [problem, policy, device] = request;
  MeasureOptions options;
  // A GPU builds and times all algorithms in seconds. One call on a CPU may take as long.
  options.time_budget_s = device.is_cuda() ? 30 : 10;
  options.prunes = true;
  Notice notice(problem);
  options.progress = [&](int done, int total, const std::string&) { notice.update(done, total); };
  auto start = Clock::now();
  auto counted = c10::make_scope_exit([&] {
    std::lock_guard<std::mutex> lock(searches().mutex);
    ++searches().counts.problems;
    searches().counts.seconds += seconds_from(start);
  });
  return measure_where_set(problem, policy, device, options);
}

}  // namespace

SearchResult search(const Request& request) {
  SearchResult result;
  try {
    result.measured = measure_in_call(request);
  } catch (const IsolationFailure& failure) {
    return {{}, "the process that tunes for this one failed", failure.msg()};
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    return {{}, kNoMemory, ""};
  }
  if (auto failure = find_failure_of_all(result.measured)) {
    bool no_memory = *failure == kOutOfMemory;
    result.obstacle = no_memory ? kNoMemory : "every algorithm failed while tuning";
    if (!no_memory) result.detail = *failure;
  }
  return result;
}

}  // namespace torch_cudnn_ext
